// Package stage is the last stage of a container's process: what it is between the keeper and its own program.
//
// It is the keeper's own binary under another name. A constructor in C recognises the name and stays in C, so that Go's
// runtime, and all that the keeper links, never starts: that takes longer than all of the rest together. The keeper gives it a
// plan, a file in memory that the stage maps, and a pipe on which it says how far it came; a pipe that closes without a word
// says that the program runs.
//
// A process of a running container (Join) joins the container's cgroups and namespaces by the pidfd of its first
// process, in the order in which a host's resource is given up only when it is needed no more, and forks once to be in the PID
// namespace. On cgroup v1 it writes to a hierarchy's tasks file: the move of a thread by itself does not wait for all
// processors, as that of a process by another one does. The first process of a container (Finish) has all of that from
// libcontainer.
//
// Both then give up what they may not keep: descriptors, user, groups, capabilities, the right to gain more. The seccomp
// filter comes last but for the capabilities that loading it needs; it is compiled beforehand (package filter).
//
// What holds against a hostile container:
//
//   - The program file that the stage runs from is sealed, so /proc/PID/exe is no way to the keeper's binary.
//   - The stage is not dumpable until it executes the program.
//   - No descriptor of a directory is open when the working directory is entered, and that one is checked to be inside.
//   - Nothing that the container's file system names is opened but /etc/passwd, for HOME, and that never blocks.
package stage
