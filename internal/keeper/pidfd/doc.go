// Package pidfd waits for processes through pidfds in Go's poller, so a waiting process needs no thread. It also finds
// out how a process ended that was not a child of this process.
package pidfd
