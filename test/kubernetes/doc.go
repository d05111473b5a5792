// Package kubernetes builds programs of Kubernetes, and those that a cluster needs beside it, through the Go module
// proxy, for suites that run a real kubelet or a cluster. The module that names Kubernetes' version, and everything
// that its programs need, is test/kubelet/build; CoreDNS, containerd, runc and gVisor have modules of their own. What
// was built once is kept in the user's cache directory.
package kubernetes
