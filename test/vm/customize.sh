#!/bin/sh
# Makes a fresh Debian tree, $1, the virtual machine's.
set -eu
root=$1
echo berth-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 berth-vm\n::1 localhost ip6-localhost\n' >"$root/etc/hosts"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
echo '/dev/vda / ext4 prjquota 0 0' >"$root/etc/fstab"
# As on a node: what has no other route goes out by eth0, and packets over a bridge are seen by the tables of netfilter.
printf '[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nDefaultRouteOnDevice=yes\n' >"$root/etc/systemd/network/eth0.network"
echo br_netfilter >"$root/etc/modules-load.d/vm.conf"
cat >"$root/etc/systemd/system/vm-agent.service" <<END
[Unit]
Description=Runs what the host asks for
After=apparmor.service systemd-networkd-wait-online.service
Wants=systemd-networkd-wait-online.service
[Service]
ExecStartPre=/bin/mkdir -p /host
ExecStartPre=/bin/mount -t virtiofs host /host
ExecStart=/host/agent
Environment=HOME=/root
Delegate=yes
KillMode=process
LimitNOFILE=1048576
TasksMax=infinity
StandardOutput=journal+console
[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl -q enable vm-agent.service systemd-networkd.service
# Nothing shall run beside the tests that they did not start.
chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
	fstrim.timer systemd-tmpfiles-clean.timer containerd.service getty@tty1.service
