// Package lease opens files of which a process of a container may hold a lease (fcntl(2), F_SETLEASE). An open of such
// a file waits until the holder gives the lease up, or the kernel takes it, after 45 s (fs.lease-break-time). With
// O_NONBLOCK it tells the holder too, and fails with EAGAIN.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Open calls open, which has O_NONBLOCK, again and again while it fails with EAGAIN, until limit has passed or the
// context ends. The holder of a lease who gives it up when the kernel asks for it does so within milliseconds.
func Open[F any](ctx context.Context, limit time.Duration, open func() (F, error)) (F, error) {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		f, err := open()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return f, err
		case time.Until(end) < pause:
			return f, fmt.Errorf("another process holds a lease of the file (F_SETLEASE): %w", err)
		}
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(pause):
		}
	}
}
