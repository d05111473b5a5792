// Package stage is what a container's process is between the keeper and its own program.
//
// It is the keeper's own binary under another name. A constructor in C recognises the name and stays in C, so that Go's
// runtime, and all that the keeper links, never starts: that takes longer than all of the rest together.
// The keeper gives it a plan, a file in memory that the stage maps, and a socket on which the stage reports and waits;
// a socket that closes without a report says that the program runs. There are three kinds of it:
//
//   - The init process of a container (Begin) is set up from nothing: cgroups, namespaces, mounts, devices, the root
//     (setup.c). The plan has a list of operations for that, made of what libcontainer would have been told. What it
//     mounts of the host's is cloned there and put together in a copy of an empty mount namespace that the keeper holds
//     (PrepareSetups), so that the number of the host's mounts does not matter.
//   - A process of a running container (Join) joins the container's cgroups and namespaces by the pidfd of its init
//     process, in the order in which a host's resource is given up only when it is needed no more.
//   - The last stage of what libcontainer has set up (Finish), where the container is one that Begin does not know.
//
// The first two wait when all is done, so that the keeper can put the process into escrow before its program begins;
// they end if the keeper does.
//
// On cgroup v1 a process writes to a hierarchy's tasks file itself: the move of a thread by itself does not wait
// for all processors, as that of a process by another one does. On v2 it is born into its cgroup.
//
// All kinds then give up what they may not keep: descriptors, user, groups, capabilities, the right to gain more. The
// seccomp filter comes last but for the capabilities that loading it needs; it is compiled beforehand (package filter).
//
// # Processes that a container can see
//
// A process that enters a PID namespace with other processes in it is seen by those, and one of them
// that has CAP_SYS_PTRACE can do with it as it likes. So a stage enters as the last thing that it does, by a fork:
// what the container sees is a process with the container's root, mounts, network, user and capabilities
// from its first moment on, and with its seccomp filter too, where that allows the few calls that are left (afterFork).
// That holds for execs, and for containers that share their pod's PID namespace. A procfs of a namespace that the stage
// has not entered yet is opened by a process that has given up all else (proc.c).
//
// # User namespaces
//
// A container in its pod's user namespace is set up with the rights of that namespace alone, but for the mounts
// of the host, which are cloned before. The kernel locks them as it copies them into a mount namespace that the user
// namespace owns, so that the container's root cannot undo what they were mounted with (pass_into_user_namespace).
//
// # What holds against a hostile image or container
//
//   - Every path of a set-up is resolved by openat2(2) with the container's root as the only root, and no magic link
//     is followed. What is mounted goes onto the descriptor that came of it, so nothing that is exchanged meanwhile
//     leads it elsewhere.
//   - Nothing but a procfs is mounted on the container's /proc, and nothing in it but what lxcfs has, whatever links
//     lead there.
//   - The program file that the stage runs from is sealed, so /proc/PID/exe is no way to the keeper's binary.
//   - The stage is not dumpable until it executes the program.
//   - No descriptor of a directory is open when the working directory is entered, and that one is checked to be inside.
//   - Nothing that the container's file system names is opened but /etc/passwd, for HOME, and that never blocks,
//     and devices whose numbers are checked.
//   - The kernel tells the keeper which process a report comes from: no process of a container can report for a stage.
package stage
