// Program conformance runs critest, the conformance suite of the CRI, against a runtime: a fresh berthd,
// Debian's containerd beside it for comparison, or whatever listens on a socket.
//
// It builds critest and crictl through the Go module proxy (test/tools), builds the images that critest pulls (package
// images), serves them from a registry on loopback, runs the suite over SPDY, over WebSocket, and twice at the same
// time, and ends with a status other than 0 for any failure that is not in the list of specs that no such image
// can satisfy.
package main
