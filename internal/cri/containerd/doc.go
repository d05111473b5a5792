// Package containerd serves the part of containerd's API that monitoring agents use: the list of containers, their
// labels, specifications and processes, images, and events. A kubelet's cAdvisor supports only containerd and CRI-O;
// with this API it finds Berth's containers too.
//
// Everything is in the namespace k8s.io and read-only. Calls that would change something are refused (see readOnly),
// because pods are managed by the kubelet, through the CRI. As in containerd, the sandbox of a pod is listed as a
// container, although it has no process in Berth: see sandboxCgroups.
package containerd
