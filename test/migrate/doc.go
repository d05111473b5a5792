// Package migrate takes a node of containerd to Berth and back with `berth migrate`: its configuration and images,
// with the registry switched off, and pods on either side. It is Debian's containerd, and another one where
// EnvContainerd says where that is, as `make migrate` does with a containerd 2 that it has built.
package migrate
