// Package shim has the part of containerd's protocols for shims that the keeper speaks, generated from shim.proto.
package shim

//go:generate sh generate.sh
