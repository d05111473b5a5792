package logpump

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/logpart"
)

// Stream is where a container wrote.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// reopenAfter is how long after a failure to open the file the next try is made.
const reopenAfter = time.Second

// Log is the log file of one container and the clients that follow its output.
type Log struct {
	path     string
	backlogs *Backlogs
	logger   *slog.Logger

	mu       sync.Mutex // one write at a time, so that no two records mix
	file     *os.File   // nil: not open
	closed   bool
	failing  bool   // the last write or open failed and was logged
	dropped  uint64 // bytes of records that could not be written
	nextOpen time.Time
	rotation *rotation // nil: the keeper does not rotate the file

	rate *rate // nil: output comes as fast as it does

	amu      sync.Mutex
	clients  map[string]*client
	finished bool
}

// New prepares the log at path; an empty path keeps none. The file is opened at once, or later if that fails. What slow
// clients leave is counted in backlogs, which all logs of a keeper share.
func New(path string, backlogs *Backlogs, logger *slog.Logger) *Log {
	l := &Log{path: path, backlogs: backlogs, logger: logger}
	l.open()
	return l
}

// Inherit prepares the log of a keeper that was killed. Recover opens the file.
func Inherit(path string, backlogs *Backlogs, logger *slog.Logger) *Log {
	return &Log{path: path, backlogs: backlogs, logger: logger}
}

func (l *Log) open() {
	if l.path == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.file == nil {
		_ = l.openLocked()
	}
}

// Mend removes the beginning of a record that another keeper was killed in the middle of writing.
func (l *Log) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" || l.file == nil {
		return
	}
	fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		l.failLocked(err)
		return
	}
	f := os.NewFile(uintptr(fd), l.path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return
	}
	tail := make([]byte, min(st.Size(), 2*MaxLine)) // a record and its head
	at := st.Size() - int64(len(tail))
	if _, err := f.ReadAt(tail, at); err != nil {
		return
	}
	if i := bytes.LastIndexByte(tail, '\n') + 1; i < len(tail) {
		if err := l.file.Truncate(at + int64(i)); err != nil {
			l.logger.Warn("a record that was cut off stays in the log", "path", l.path, "error", err)
		}
	}
}

// Recover is called for a log of Inherit with the pumps that were adopted, before they begin (Pump.StartAfter): it
// opens the file, and finds out how much of what the pumps had read is in it. It may wait for a disk that does not
// answer.
//
// ended is closed when the kernel has no threads any more of keepers that were killed; nil: it has none. One that was
// killed while it did something with the file may still be in that system call, and write to the file when the disk
// answers. Nobody could tell then which records are there, so Recover waits for its end. That thread waits for the disk
// of this log, and other logs go on.
func (l *Log) Recover(ended <-chan struct{}, pumps ...*Pump) {
	if l.path == "" {
		return
	}
	l.awaitEnd(ended, pumps)
	for _, p := range pumps {
		p.buf.touch(1)
		defer p.buf.touch(0)
	}
	l.open()
	for _, p := range pumps {
		l.recoverBuffer(p.buf)
		p.buf.touch(1)
	}
	l.Mend()
}

// awaitEnd waits for the end of earlier keepers, unless they were done with the file.
func (l *Log) awaitEnd(ended <-chan struct{}, pumps []*Pump) {
	if ended == nil || !slices.ContainsFunc(pumps, func(p *Pump) bool { return p.buf.touched() }) {
		return
	}
	soon := time.NewTimer(idle)
	defer soon.Stop()
	select {
	case <-ended:
		return
	case <-soon.C:
	}
	l.logger.Warn("a keeper that was killed is still in a system call on the log; its output waits until that has ended",
		"path", l.path)
	<-ended
}

// recoverBuffer finds out whether the last write of a process that was killed, out of this buffer, is in the log file.
// A write that is there in part is taken off again. Where the file is another one by now, or shorter than it was, that
// cannot be told: then it is written, again perhaps.
func (l *Log) recoverBuffer(b *buffer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := b.h
	if h.writing == 0 {
		return
	}
	defer b.recall()
	if h.writing == skipping {
		b.put(h.next)
		return
	}
	mark, kind := h.done, h.writing
	h.writing = writing // what was lost counts as it was before, unless all has been written
	var st unix.Stat_t
	same := l.file != nil && unix.Fstat(int(l.file.Fd()), &st) == nil && uint64(st.Dev) == h.dev && st.Ino == h.inode
	if same && uint64(st.Size) >= h.before {
		if uint64(st.Size)-h.before >= h.length {
			mark, h.writing = h.next, kind
		} else if err := l.file.Truncate(int64(h.before)); err != nil {
			l.logger.Warn("a record that was cut off stays in the log", "path", l.path, "error", err)
		}
	}
	if at := bufferBase + int(mark>>1); at < b.at() || at > b.pos {
		mark = h.done
	}
	b.put(mark)
}

func (l *Log) openLocked() error {
	f, err := logpart.Open(l.path)
	if err != nil {
		l.nextOpen = time.Now().Add(reopenAfter)
		l.failLocked(err)
		return err
	}
	l.file = f
	return nil
}

// failLocked says once that the log cannot be written.
func (l *Log) failLocked(err error) {
	if !l.failing {
		l.failing = true
		l.logger.Error("log cannot be written; output is dropped until it can", "path", l.path, "error", err)
	}
}

// Reopen closes the file and opens the one that has its name now. The old one stays in use if that fails.
func (l *Log) Reopen() error {
	if l.path == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	// Under the lock: a rotation meanwhile would rename the file that was opened.
	f, err := logpart.Open(l.path)
	if err != nil {
		return err
	}
	l.replaceLocked(f)
	return nil
}

// replaceLocked writes to another file from now on.
func (l *Log) replaceLocked(f *os.File) {
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	if l.rotation != nil {
		l.rotation.moved, l.rotation.next = time.Time{}, time.Time{}
	}
}

// removedLocked opens the file that has the log's name now, where that in use has lost its last name: nobody can read
// what is written to it. Somebody has removed it, or has rotated the log, has not got the answer of Reopen, and has
// renamed the old file back over the one that Reopen had opened. st becomes that of the new file.
func (l *Log) removedLocked(st *unix.Stat_t) error {
	l.nextOpen = time.Now().Add(reopenAfter) // somebody may remove it all the time
	f, err := logpart.Open(l.path)
	if err != nil {
		l.file.Close()
		l.file = nil
		l.failLocked(err)
		return err
	}
	l.replaceLocked(f)
	if err := unix.Fstat(int(l.file.Fd()), st); err != nil || st.Nlink == 0 {
		return nil // a file system that does not count names
	}
	l.logger.Warn("log was removed or replaced; it goes on in the file that has its name", "path", l.path)
	return nil
}

// Dropped is how many bytes of records could not be written so far.
func (l *Log) Dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// write appends whole records to the log. Before and after, it notes in the pump's shared header how far the buffer is
// logged, so that the next keeper can tell whether this write was completed. Records that cannot be written are counted
// and dropped; no piece of a record stays in the log.
func (l *Log) write(b []byte, from *buffer, mark uint64) {
	if len(b) == 0 {
		from.skip(mark)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer from.put(mark)
	if l.path == "" || l.closed {
		return
	}
	from.touch(1)
	if l.file == nil && (time.Now().Before(l.nextOpen) || l.openLocked() != nil) {
		l.drop(len(b))
		return
	}
	fd := int(l.file.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil {
		if st.Nlink == 0 && !time.Now().Before(l.nextOpen) {
			if l.removedLocked(&st) != nil {
				l.drop(len(b))
				return
			}
			fd = int(l.file.Fd())
		}
		if l.rotation != nil && l.rotateLocked(&st, len(b), from, mark) {
			fd = int(l.file.Fd())
		}
		from.begin(&st, len(b), mark)
	}
	if l.rate != nil && !l.rate.drop {
		l.rate.take(len(b), time.Now())
	}
	for done := 0; done < len(b); {
		n, err := unix.Write(fd, b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.failLocked(err)
			// What has been written of this call may end within a record: only whole ones stay.
			whole := lastRecord(b[:done])
			if torn := done - whole; torn > 0 {
				if err := cut(fd, int64(torn)); err != nil {
					_, _ = unix.Write(fd, []byte{'\n'})
				}
			}
			totals.bytes.Add(uint64(whole))
			l.drop(len(b) - whole)
			return
		}
		done += n
	}
	totals.bytes.Add(uint64(len(b)))
	if l.failing {
		l.failing = false
		l.logger.Warn("log can be written again", "path", l.path, "dropped_bytes", l.dropped)
	}
}

// drop counts bytes of records that are lost. The caller holds l.mu.
func (l *Log) drop(n int) {
	l.dropped += uint64(n)
	totals.dropped.Add(uint64(n))
}

// lastRecord is the length of the whole records that b begins with.
func lastRecord(b []byte) int {
	for i := len(b); i > 0; i-- {
		if b[i-1] == '\n' {
			return i
		}
	}
	return 0
}

// cut takes the last n bytes off a file.
func cut(fd int, n int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size < n {
		return errors.New("file is shorter than what was written")
	}
	return unix.Ftruncate(fd, st.Size-n)
}

// Finish is called after the last output. Each client is closed when it has read the rest of its output.
func (l *Log) Finish() {
	l.amu.Lock()
	defer l.amu.Unlock()
	l.finished = true
	for _, c := range l.clients {
		c.finish()
	}
}

// Close closes the file and finishes the clients.
func (l *Log) Close() {
	l.Finish()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
