// Package doctor looks at a machine and says whether Berth can run pods on it, what is lacking and what to do about it.
// It needs no daemon. It tries things out where that is possible (mounting an overlay, talking to nftables) and leaves
// nothing behind.
package doctor
