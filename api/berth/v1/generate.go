// Package berthv1 is the protocol of Berth's own service on its socket.
package berthv1

//go:generate sh generate.sh
