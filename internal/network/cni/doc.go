// Package cni joins pods to the network that a node's CNI configuration names, by running its plugins through libcni.
//
// What a pod is joined with is on disk before the first plugin runs: configuration, arguments and capabilities.
// So a pod is taken out with the configuration that it was joined with, after the configuration has changed,
// and after a crash in the middle of joining it.
package cni
