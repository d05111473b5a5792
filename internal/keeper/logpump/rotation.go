package logpump

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/logpart"
)

const (
	// rotateAfter is how long after a rotation that failed the next try is made.
	rotateAfter = time.Second
	// movedWait is how long another program that has renamed the file has time to ask for a new one. A kubelet that
	// cannot reach berthd renames the file back, over one that would have been opened meanwhile.
	movedWait = 10 * time.Second
	// mostSlack is how much of a file's size is left free so that no line has to be split over two files.
	mostSlack = 256 << 10
)

// rotation is how the keeper rotates the file of a log. Log.mu guards it.
type rotation struct {
	size, slack int64
	files       int

	next    time.Time // before that it is not tried
	moved   time.Time // since when the log's name has not been that of the file; zero: it is
	failing bool      // a rotation failed and was logged
	open    [2]bool   // by buffer.stream: the last record of the stream in the file is of tag P
}

func newRotation(size int64, files int) *rotation {
	return &rotation{size: size, slack: min(size/8, mostSlack), files: files}
}

// due says whether the file is rotated before n bytes more are written to it. It is rotated before it is full, where no
// line has begun; where one has all the time, it is rotated when it is full.
func (r *rotation) due(size, n int64) bool {
	switch {
	case size == 0 || size+n <= r.size-r.slack:
		return false
	case size+n > r.size:
		return true
	}
	return !r.open[0] && !r.open[1]
}

// begins tells the rotation whether the last record of a pump that starts is of tag P.
func (l *Log) begins(b *buffer) {
	if l.rotation == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotation.open[b.stream] = b.open()
}

// rotateLocked rotates the file if n bytes, with which the buffer is at the mark, do not fit into it; st is the file's
// and becomes that of the new one. It is false where the file is the same as before: the output goes on there if the
// rotation fails, and nothing is lost.
func (l *Log) rotateLocked(st *unix.Stat_t, n int, from *buffer, mark uint64) bool {
	r := l.rotation
	due := r.due(st.Size, int64(n))
	r.open[from.stream] = mark&1 != 0
	if !due {
		return false
	}
	now := time.Now()
	if now.Before(r.next) {
		return false
	}
	rotated, err := logpart.Rotate(l.path, l.file, now)
	switch {
	case errors.Is(err, logpart.ErrMoved):
		if !l.movedLocked(now) {
			return false
		}
	case err != nil:
		l.rotateFailedLocked(now, err)
		return false
	default:
		l.replaceLocked(rotated.File)
		totals.rotations.Add(1)
		removed, err := logpart.Prune(l.path, r.files-1)
		totals.removed.Add(uint64(removed))
		if err != nil {
			l.rotateFailedLocked(time.Time{}, err) // the log has its new file; more than this one may be left to remove
		} else if r.failing {
			r.failing = false
			l.logger.Warn("log is rotated again", "path", l.path)
		}
	}
	_ = unix.Fstat(int(l.file.Fd()), st)
	return true
}

// movedLocked opens a new file for a log that another program has renamed, or removed, and did not ask to open again in
// time. It is false until then.
func (l *Log) movedLocked(now time.Time) bool {
	r := l.rotation
	if r.moved.IsZero() {
		r.moved = now
	}
	if now.Sub(r.moved) < movedWait {
		r.next = now.Add(rotateAfter)
		return false
	}
	file, err := logpart.Open(l.path)
	if err != nil {
		l.rotateFailedLocked(now, err)
		return false
	}
	l.logger.Warn("log was renamed or removed, and nobody asked for a new file; a new one is opened", "path", l.path)
	l.replaceLocked(file)
	return true
}

// rotateFailedLocked says once that the log cannot be rotated.
func (l *Log) rotateFailedLocked(now time.Time, err error) {
	r := l.rotation
	if !now.IsZero() {
		r.next = now.Add(rotateAfter)
	}
	if !r.failing {
		r.failing = true
		l.logger.Error("log cannot be rotated; output goes on, and the log may be larger than its limit", "path", l.path,
			"error", err)
	}
}
