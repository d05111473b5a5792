// Package doctor checks whether Berth can run pods on a machine, and says what is missing and what to do about it. It
// needs no daemon. Where possible it tries an operation (it mounts an overlay, it talks to nftables), and cleans up
// afterwards.
package doctor
