// Package jail starts children of berthd that parse what nobody has checked, images and archives above all,
// and that can do nothing else. The child's side is package child, the program is cmd/berth-unpack.
//
// A child has from its first instruction on:
//
//   - a mount namespace with its program and the directories that it is given, as mounts that obey no setuid bit,
//     no device and no program; no /proc; a root that is read-only,
//   - network, IPC, UTS and cgroup namespaces in which nothing is, and a PID namespace of its own,
//   - a user ID that no other process of the host has, no groups, and no capabilities but those of its role,
//     which are those of a file's owner: none of them leads out of its directories,
//   - no way to gain any (no_new_privs, the bounding set),
//   - a score by which the kernel ends it first when memory is short, and its own end when berthd's comes.
//
// Then it takes limits on memory, files and threads upon itself, and a seccomp filter of what its role calls.
// What it answers is bounded and decoded strictly, and berthd trusts none of it.
//
// Children are forked by one thread that is in such namespaces for good. It has them from an empty mount namespace,
// so that a child costs no copy of the mounts of all pods: a child is ready in some 3 ms, most
// of which are those of Go's runtime.
package jail
