// Package mountns keeps Berth's mounts out of the node's mount namespace: those of the root file systems, the shared
// memory and the namespaces of pods. systemd and everybody who reads /proc/self/mountinfo pays for each mount there.
//
// berthd and the keeper run in a mount namespace of their own. It is a copy of the node's, and its mounts are peers of
// the node's: a volume that a kubelet mounts is there at once, and what a container mounts with Bidirectional
// propagation gets to the node. Only the directories that Berth mounts in are private mounts in it. The namespace is
// pinned, so it outlives both programs. See docs/adr/0031-own-mount-namespace.md.
package mountns
