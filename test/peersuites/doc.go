// Program peersuites runs the suites by which other runtimes of the CRI test themselves against Berth: the integration
// tests of containerd (Go), and those of CRI-O (bats).
//
// Both come from the Go modules of their projects, which the module proxy serves, and are checked against a sum that is
// written here. Nothing of theirs is in this tree. What a suite takes from its own daemon is replaced by code of ours:
// a file of Go that is added to containerd's package, and helpers.bash of CRI-O's.
//
// A story that Berth does not pass has its reason in a list (expected.go). A failure that is not listed fails the run,
// and so does a listed one that passes, or that the suite does not have any more.
package main
