// Package pidfd waits for processes through pidfds in Go's poller, so that a waiting process costs no thread, and tells
// how a process ended even when it was not a child of this one.
package pidfd
