// Package stage is what a container's process is between the keeper and its own program.
//
// It is the keeper's own binary under another name. A constructor in C recognises the name and stays in C, so that Go's
// runtime, and all that the keeper links, never starts: that takes longer than all of the rest together. The keeper gives it a
// plan, a file in memory that the stage maps, and a pipe on which it says how far it came; a pipe that closes without a word
// says that the program runs. There are three kinds of it:
//
//   - The first process of a container (Begin) is set up from nothing: cgroups, namespaces, mounts, devices, the root (setup.c).
//     The plan has a list of operations for that, made of what libcontainer would have been told. What it mounts of the host's is
//     cloned there and put together in a copy of an empty mount namespace that the keeper holds (PrepareSetups), so that
//     the number of the host's mounts does not matter. When all is done it says that
//     it is ready and waits, so that the keeper can give the container into custody and set its limits; it ends if the keeper does.
//   - A process of a running container (Join) joins the container's cgroups and namespaces by the pidfd of its first process,
//     in the order in which a host's resource is given up only when it is needed no more, and forks once to be in the PID
//     namespace.
//   - The last stage of what libcontainer has set up (Finish), where the container is one that Begin does not know.
//
// On cgroup v1 a process writes to a hierarchy's tasks file itself: the move of a thread by itself does not wait for all
// processors, as that of a process by another one does. On v2 it is born into its cgroup.
//
// All kinds then give up what they may not keep: descriptors, user, groups, capabilities, the right to gain more. The seccomp
// filter comes last but for the capabilities that loading it needs; it is compiled beforehand (package filter).
//
// What holds against a hostile image or container:
//
//   - Every path of a set-up is resolved by openat2(2) with the container's root as the only root, and no magic link is followed.
//     What is mounted goes onto the descriptor that came of it, so nothing that is exchanged meanwhile leads it elsewhere.
//   - Nothing but a procfs is mounted on the container's /proc, and nothing in it but what lxcfs has, whatever links lead there.
//   - The program file that the stage runs from is sealed, so /proc/PID/exe is no way to the keeper's binary.
//   - The stage is not dumpable until it executes the program.
//   - No descriptor of a directory is open when the working directory is entered, and that one is checked to be inside.
//   - Nothing that the container's file system names is opened but /etc/passwd, for HOME, and that never blocks, and devices whose
//     numbers are checked.
package stage
