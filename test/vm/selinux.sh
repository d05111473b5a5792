#!/bin/sh
# Gives a fresh Debian tree, $1, a policy of SELinux, and its files their labels.
set -eu
root=$1
printf 'SELINUX=permissive\nSELINUXTYPE=default\n' >"$root/etc/selinux/config"
# Debian's policy names the types of containers (contexts/lxc_contexts) and does not have them.
cat >"$root/root/container.cil" <<END
; Only containers are held to the policy. What tests and nodes run in is permissive.
(typepermissive init_t)
(typepermissive initrc_t)
(typepermissive kernel_t)
(typepermissive unlabeled_t)
(typepermissive unconfined_t)
(typepermissive iptables_t)
(typepermissive ifconfig_t)
(typepermissive kmod_t)
(typepermissive udev_t)

; What a node executes of a container without a label of its own, a privileged one's, is this.
(type spc_t)
(roletype system_r spc_t)
(typeattributeset domain (spc_t))
(typepermissive spc_t)
(typetransition init_t container_file_t process spc_t)
(typetransition initrc_t container_file_t process spc_t)

(type container_t)
(typealias svirt_lxc_net_t)
(typealiasactual svirt_lxc_net_t container_t)
(roletype system_r container_t)
(typeattributeset domain (container_t))
(typeattributeset mcs_constrained_type (container_t))
(type container_file_t)
(roletype object_r container_file_t)
(typeattributeset file_type (container_file_t))
(type container_ro_file_t)
(roletype object_r container_ro_file_t)
(typeattributeset file_type (container_ro_file_t))

; a container and what is its own
(allow container_t self (process (all)))
(allow container_t self (capability (all)))
(allow container_t self (cap_userns (all)))
(allow container_t self (fd (all)))
(allow container_t self (key (all)))
(allow container_t self (file (all)))
(allow container_t self (dir (all)))
(allow container_t self (lnk_file (all)))
(allow container_t self (fifo_file (all)))
(allow container_t self (unix_stream_socket (all)))
(allow container_t self (unix_dgram_socket (all)))
(allow container_t self (tcp_socket (all)))
(allow container_t self (udp_socket (all)))
(allow container_t self (netlink_route_socket (all)))
(allow container_t container_file_t (file (all)))
(allow container_t container_file_t (dir (all)))
(allow container_t container_file_t (lnk_file (all)))
(allow container_t container_file_t (fifo_file (all)))
(allow container_t container_file_t (sock_file (all)))
(allow container_t container_file_t (chr_file (all)))
(allow container_t container_file_t (filesystem (all)))
(allow container_t container_ro_file_t (file (getattr open read map execute entrypoint)))
(allow container_t container_ro_file_t (dir (getattr open read search)))
(allow container_t container_ro_file_t (lnk_file (getattr read)))
(allow container_file_t container_file_t (filesystem (associate)))
(allow container_file_t fs_t (filesystem (associate)))
(allow container_file_t tmpfs_t (filesystem (associate)))

; the kernel's file systems, and standard streams
(allow container_t proc_t (dir (getattr open read search)))
(allow container_t proc_t (file (getattr open read)))
(allow container_t proc_t (lnk_file (getattr read)))
(allow container_t sysfs_t (dir (getattr open read search)))
(allow container_t sysfs_t (file (getattr open read)))
(allow container_t cgroup_t (dir (getattr open read search)))
(allow container_t cgroup_t (file (getattr open read)))
(allow container_t init_t (fd (use)))
(allow container_t init_t (fifo_file (getattr read write append ioctl)))
(allow container_t init_t (process (sigchld)))
(allow container_t initrc_t (fd (use)))
(allow container_t initrc_t (fifo_file (getattr read write append ioctl)))
(allow container_t initrc_t (process (sigchld)))
END
chroot "$root" semodule -n -s default -i /root/container.cil
chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts \
	/bin /boot /etc /home /lib /lib64 /opt /root /run /sbin /srv /tmp /usr /var
