// Package nri runs plugins of the Node Resource Interface on private nodes. They are written with NRI's stub, and live
// in the test binary. Where EnvPeer is set, as `make nri` does, the same plugins run on a private containerd 2 too, and
// the test compares what they are told and what they change.
package nri
