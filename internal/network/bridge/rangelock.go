package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// lockDir is where the file of lockRanges is. Only root can make files there. Daemons with other state directories, and
// in other mount namespaces that have the node's /run, use the same one.
var lockDir = "/run"

// lockWait bounds the wait for another daemon that chooses a range.
const lockWait = 5 * time.Second

// lockRanges keeps two daemons in one network namespace from choosing the same range at once. It locks a file that only
// root can open with flock(2), so the lock ends with its holder, and no other user can hold it. The file's name has the
// network namespace in it. The file is removed with the lock; a daemon that is killed meanwhile leaves an empty one,
// which the next daemon uses. Where there is no place for the file, ranges are chosen without the lock: two daemons
// that start their first pods in the same moment are rarer than nodes with a read-only /run.
func lockRanges(ctx context.Context, log *slog.Logger) (unlock func(), err error) {
	path, err := rangeLockPath()
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockWait)
	for {
		f, err := lockFile(path)
		switch {
		case err == nil:
			return func() {
				_ = os.Remove(path) // before the lock ends: whoever waits for it sees that it is not the file any more
				f.Close()
			}, nil
		case errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOENT):
			log.Warn("the range of the pods is chosen without a lock: another berthd could choose the same one now",
				"error", err)
			return func() {}, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("lock the choice of the pods' range: %w", err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("another berthd has been choosing the pods' range for %v (it holds %s): %w", lockWait,
				path, errdefs.ErrUnavailable)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rangeLockPath is the lock's file for the network namespace of the calling thread.
func rangeLockPath() (string, error) {
	const namespace = "/proc/thread-self/ns/net"
	var st unix.Stat_t
	if err := unix.Stat(namespace, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: namespace, Err: err}
	}
	return filepath.Join(lockDir, fmt.Sprintf("berth-pod-range-%d-%d.lock", st.Dev, st.Ino)), nil
}

// lockFile makes a file that only this user can open, if it is not there, and locks it. The error is unix.EWOULDBLOCK
// if another process holds the lock, or has just removed the file.
func lockFile(path string) (*os.File, error) {
	// O_NONBLOCK: a pipe in the file's place would hold up the open.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	var opened, there unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &opened); err == nil {
		if opened.Mode&(unix.S_IFMT|0o077) != unix.S_IFREG || int(opened.Uid) != os.Geteuid() {
			err = fmt.Errorf("%s is not a file that only berthd's user can open; remove it: %w", path,
				errdefs.ErrFailedPrecondition)
		} else if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			// A holder before this one may have removed the file after it was opened here.
			if unix.Lstat(path, &there) != nil || there.Ino != opened.Ino || there.Dev != opened.Dev {
				err = unix.EWOULDBLOCK
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
