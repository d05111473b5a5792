// Package throwaway runs functions on threads that end with them.
package throwaway

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Thread runs f on a thread that f may put into other namespaces. The thread is never unlocked,
// so the Go runtime ends it together with the goroutine. All but the process's first thread: that one is never ended,
// and what /proc/PID says of the process is what it says of that thread; so it is kept out of this.
func Thread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		// While this goroutine holds the first thread, the next one gets another.
		done <- Thread(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}
