// Package kubernetes builds programs of Kubernetes through the Go module proxy, for suites that run a real kubelet. The
// module that names the version, and everything that the programs need, is test/kubelet/build. What was built once is
// kept in the user's cache directory.
package kubernetes
