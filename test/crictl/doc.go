// Package crictl drives the life of a pod with crictl, the debugging client of Kubernetes, against a node's socket. The
// driving is life.sh, which a person can run against any CRI socket as well.
package crictl
