// Package stage is the program that a container's process runs between its fork by the keeper and its own program.
//
// The stage is the keeper's own binary under another name. A constructor in C recognises the name and never starts Go's
// runtime and the rest of the keeper, which would take longer than all other steps together. The keeper gives the stage
// a plan, in a memfd that the stage maps, and a socket on which the stage reports and waits. If the socket closes
// without a report, the container's program runs. There are three kinds of stages:
//
//   - Begin: the init process of a container. The stage sets up cgroups, namespaces, mounts, devices and the root
//     (setup.c). The plan has a list of operations for that, which is made from libcontainer's configuration. Mounts of
//     the host are cloned in the host's mount namespace, and attached in a copy of an empty mount namespace that the
//     keeper holds (PrepareSetups). So the time does not depend on the number of mounts on the host.
//   - Join: a process of a running container. The stage joins the container's cgroups and namespaces by the pidfd of
//     its init process. It gives up each resource of the host as soon as it does not need it any more.
//   - Finish: the last step of a set-up by libcontainer, for containers that Begin does not support.
//
// When the set-up is done, the first two kinds wait until the keeper has put the process into escrow. If the keeper
// ends, they end too.
//
// On cgroup v1 the stage writes its own ID to the tasks file of each hierarchy: a thread that moves itself does not
// wait for a grace period of all processors, but a process that is moved by another process does. On cgroup v2 the
// first step of the stage is to create a child in the cgroup (Target.Clone). The child is the keeper's and does all
// that is left, and the first process ends. So the keeper never waits for a process that has no processor time or that
// the container has frozen. Beside v1, a hierarchy of version 2 limits nothing, and the keeper creates the process in
// its cgroup.
//
// Each kind then drops its privileges: descriptors, user, groups, capabilities, and the right to gain privileges. The
// seccomp filter is loaded last, apart from the capabilities that loading it needs. It was compiled before (package
// filter).
//
// # Processes that a container can see
//
// When a process enters a PID namespace, the other processes in that namespace see it, and one with CAP_SYS_PTRACE
// controls it. So the stage enters the PID namespace as its last step, by a fork. From its first moment, the process
// that the container sees has the container's root, mounts, network, user and capabilities. It also has the seccomp
// filter, if that allows the few remaining system calls (afterFork). If not, it has one that allows just these calls
// besides, and loads the container's own when they are made; without no_new_privs it keeps CAP_SYS_ADMIN for that until
// then. If that filter is too long for the kernel, no process is started. This holds for execs, and for containers that
// share their pod's PID namespace. A procfs of a PID namespace that the stage has not entered yet is opened by a
// process that has given up everything else (proc.c).
//
// # User namespaces
//
// A container in its pod's user namespace is set up with the rights of that namespace only. The exception are the
// mounts of the host, which are cloned before. The kernel locks these mounts when it copies them into a mount namespace
// that the user namespace owns, so the container's root user cannot undo their options (pass_into_user_namespace).
//
// # Defences against hostile images and containers
//
//   - Each path is resolved by openat2(2) inside the container's root, and magic links are not followed. A mount is
//     attached to the resulting descriptor, so a later change of the path has no effect.
//   - Only a procfs is mounted on the container's /proc, and only lxcfs' files are mounted in it, wherever links lead.
//   - The program file that the stage runs from is sealed, so /proc/PID/exe gives no access to the keeper's binary.
//   - The stage is not dumpable until it executes the program.
//   - No descriptor of a directory is open when the working directory is entered, and the working directory is checked
//     to be inside the root.
//   - The stage opens only two kinds of files that the container's file system names: /etc/passwd, for HOME, without
//     blocking; and devices whose numbers are checked.
//   - The kernel tells the keeper which process has sent a report, so no process of a container can report for a stage.
package stage
