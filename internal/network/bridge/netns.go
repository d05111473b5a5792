package bridge

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// openNamespace opens a pinned network namespace. ErrNotFound: there is none at that path (a reboot leaves the plain
// file).
func openNamespace(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("network namespace %s: %w", path, errdefs.ErrNotFound)
		}
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		f.Close()
		return nil, fmt.Errorf("network namespace %s: nothing is pinned there: %w", path, errdefs.ErrNotFound)
	}
	return f, nil
}

// inside runs f on a thread that is in the network namespace. The thread goes back after it; one that cannot is never
// unlocked, so that it ends with its goroutine.
func inside(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("join network namespace %s: %w", ns.Name(), err)
			return
		}
		err = f()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
