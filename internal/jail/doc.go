// Package jail starts confined children of berthd, which parse hostile input, mostly images and archives, and can do
// nothing else. The child's side is package child; the program is cmd/berth-unpack.
//
// From its first instruction, a child has
//
//   - a mount namespace that contains only its program and the directories that it is given, mounted nosuid, nodev and
//     noexec (the program can be executed); no /proc; a read-only root,
//   - empty network, IPC, UTS and cgroup namespaces, and a PID namespace of its own,
//   - a user ID that no other process of the host has, no groups, and only the capabilities of its role, which act on
//     files and do not lead out of its directories,
//   - no way to gain privileges (no_new_privs, the bounding set),
//   - the highest OOM score, and a parent death signal, so that it ends when berthd ends.
//
// Then the child sets limits of memory, files and threads for itself, and loads a seccomp filter with the system calls
// of its role. berthd limits the size of its answer, decodes it strictly, and does not trust it.
//
// One thread forks all children. It stays in such namespaces, with an almost empty mount namespace, so that starting a
// child does not copy the mounts of all pods. A child is ready in some 3 ms, most of which is the start of Go's
// runtime.
package jail
