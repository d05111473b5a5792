// Package containerd answers the part of containerd's own API that monitors and node agents use: which containers there
// are, their labels, specifications and processes, images, and events. So a kubelet's cAdvisor, which knows containerd
// and CRI-O alone, finds the pods of Berth's containers without a change.
//
// All of it is in the namespace k8s.io, and read only: what would change something is refused (see readOnly), since
// pods have one owner, the kubelet, which speaks the CRI. A pod's sandbox is a container here too, as in containerd,
// though it has no process of its own: see sandboxCgroups.
package containerd
