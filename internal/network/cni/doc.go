// Package cni connects pods to the network that the node's CNI configuration describes, by running CNI plugins through
// libcni.
//
// The configuration, arguments and capabilities of a pod's CNI ADD are on disk before the first plugin runs. So CNI DEL
// uses the same configuration, even after the node's configuration has changed, or after a crash during CNI ADD.
package cni
