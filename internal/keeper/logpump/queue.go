package logpump

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// memoryLimit is how much of what a slow client has not taken is kept in memory; the rest goes to a file.
	memoryLimit = 256 << 10
	spillRead   = 64 << 10
	// spillStep is by how much a spill file grows between two looks at the room that its file system has, and how much of
	// what has been read of it is given back at a time.
	spillStep = 1 << 20
	// chunk is how much at least lies together of what waits for the disk.
	chunk = 64 << 10
)

// queue holds the output that one reader has not read yet. From the oldest bytes to the newest these are: front, which
// is being written to the reader; mem; the unread part of the spill file; and tail, which waits for that file.
//
// push adds output and waits for neither the reader nor the disk. One goroutine writes to the reader. Another
// goroutine, which exists only while there are bytes in the file or for the file, does all work on the file. The type
// has many fields, because a byte moves from one of these places to the next under one lock, mu. So no byte is lost or
// doubled.
type queue struct {
	file    *os.File
	all     *Backlogs
	dir     string
	backlog int64
	lose    func(error)   // cuts the client off; called without a lock
	wake    chan struct{} // one token: there is something to write to the reader
	stir    chan struct{} // one token: there is something to do about the file

	mu       sync.Mutex
	front    []byte
	mem      []byte
	tail     [][]byte
	waiting  int64 // bytes of tail
	writing  int64 // bytes that are being written to the file
	spill    *os.File
	from, to int64       // what of spill is unread
	freed    int64       // what of its beginning takes no room any more
	looked   int64       // up to where there was room when it was last looked; for spool alone
	finished bool        // nothing more comes
	dead     bool        // the reader is gone; set by die alone
	gone     atomic.Bool // the same, for Backlogs.await
	stopping bool
	done     chan struct{} // closed when the writer to the reader has ended
	spooled  chan struct{} // closed when the goroutine of the file has ended; nil: there is none
}

func newQueue(f *os.File, all *Backlogs, keep Keep, lose func(error)) *queue {
	q := &queue{file: pollable(f), all: all, dir: keep.Dir, backlog: keep.Backlog, lose: lose,
		wake: make(chan struct{}, 1), stir: make(chan struct{}, 1)}
	if q.dir == "" {
		q.dir = all.dir
	}
	if q.backlog <= 0 {
		q.backlog = DefaultBacklog
	}
	return q
}

// pollable makes writes to the file wait in the poller, where its kind allows that.
func pollable(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return f
	}
	f.Close()
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "attached")
}

func (q *queue) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, done := q.done, make(chan struct{})
	if before != nil && !q.stopping {
		return // it was not paused
	}
	q.stopping, q.done = false, done
	_ = q.file.SetWriteDeadline(time.Time{})
	go func() {
		if before != nil {
			<-before // one that was asked to pause may still be at a write that hangs
			token(q.wake)
		}
		q.run(done)
	}()
	if q.spooled == nil && (q.from < q.to || len(q.tail) > 0) { // push may have begun it
		q.startSpool()
	}
	token(q.wake)
}

// startSpool begins the work on the file. The caller holds q.mu.
func (q *queue) startSpool() {
	q.spooled = make(chan struct{})
	go q.spool(q.spooled)
}

// token puts a token into a channel that holds one.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// held is how much is kept beyond what is in memory anyway. The caller holds q.mu.
func (q *queue) held() int64 { return q.to - q.freed + q.writing + q.waiting }

// give removes n bytes from the count of kept bytes. The caller holds q.mu.
func (q *queue) give(n int64) {
	if q.dead {
		q.all.closed(n)
	} else {
		q.all.give(n)
	}
}

// die marks the reader as gone: its bytes in memory are dropped at once, and those in its file do not count any more.
// The caller holds q.mu.
func (q *queue) die() {
	if q.dead {
		return
	}
	q.dead, q.tail = true, nil
	q.all.stored(q.waiting)
	q.all.give(q.waiting)
	q.waiting = 0
	q.gone.Store(true)
	q.all.leave(q.held())
}

// push keeps a copy of b for the reader: errGone if there is none, else the reason why it cannot be kept.
func (q *queue) push(b []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return errGone
	}
	// No goroutine works on the file of a queue that is stopped or not started. The bytes in the file still come first.
	if q.spooled == nil && q.from == q.to && len(q.mem)+len(b) <= memoryLimit {
		q.mem = append(q.mem, b...)
		token(q.wake)
		return nil
	}
	n := int64(len(b))
	if q.held()+n > q.backlog {
		return fmt.Errorf("no more than %d bytes are kept for it", q.backlog)
	}
	if err := q.all.take(n, q.held(), q.waiting, q.dir); err != nil {
		return err
	}
	q.waiting += n
	if last := len(q.tail) - 1; last >= 0 && len(q.tail[last])+len(b) <= cap(q.tail[last]) {
		q.tail[last] = append(q.tail[last], b...)
	} else {
		q.tail = append(q.tail, append(make([]byte, 0, max(len(b), chunk)), b...))
	}
	if q.spooled == nil {
		q.startSpool()
	}
	token(q.stir)
	return nil
}

// spool writes waiting bytes to the file, and reads them back into memory when the reader has room there. It ends when
// no bytes are left for either, when the reader is gone, or, if the queue is to stop, when all bytes are in the file.
func (q *queue) spool(done chan struct{}) {
	defer close(done)
	read := false // the last thing was to read: what waits comes first now
	for {
		q.mu.Lock()
		stored := q.from < q.to
		switch {
		case q.dead:
			q.spooled = nil
			drop := q.drop()
			q.mu.Unlock()
			drop()
			return
		case len(q.tail) == 0 && (q.stopping || !stored && q.to == 0):
			q.spooled = nil
			q.mu.Unlock()
			token(q.wake) // the reader's goroutine may end with this one
			return
		case !stored && q.to > 0 && !q.stopping:
			q.mu.Unlock()
			q.reset()
		case stored && !q.stopping && len(q.mem)+spillRead <= memoryLimit && !(read && len(q.tail) > 0):
			q.mu.Unlock()
			q.fetch()
			read = true
		case len(q.tail) > 0:
			piece := q.tail[0]
			q.tail = q.tail[1:]
			if !stored && !q.stopping && len(q.mem)+len(piece) <= memoryLimit { // the reader has caught up
				q.mem = append(q.mem, piece...)
				q.waiting -= int64(len(piece))
				q.all.stored(int64(len(piece)))
				q.give(int64(len(piece)))
				q.mu.Unlock()
				token(q.wake)
				continue
			}
			q.waiting -= int64(len(piece))
			q.writing = int64(len(piece))
			q.mu.Unlock()
			q.store(piece)
			read = false
		default:
			q.mu.Unlock()
			<-q.stir
		}
	}
}

// store appends to the file. It is for spool.
func (q *queue) store(piece []byte) {
	size := int64(len(piece))
	n, err := 0, error(nil)
	if q.all.await(size, &q.gone) {
		n, err = q.append(piece)
	}
	q.mu.Lock()
	q.to += int64(n)
	q.writing = 0
	q.give(size - int64(n))
	q.mu.Unlock()
	if err != nil {
		q.fail(err)
	}
}

func (q *queue) append(piece []byte) (int, error) {
	if q.spill == nil {
		spill, err := q.all.open(q.dir)
		if err != nil {
			return 0, err
		}
		q.mu.Lock()
		q.spill = spill
		q.mu.Unlock()
	}
	if q.to+int64(len(piece)) > q.looked {
		if err := q.all.room(q.dir); err != nil {
			return 0, err
		}
		q.looked = q.to + spillStep
	}
	return q.spill.WriteAt(piece, q.to)
}

// fetch reads the next piece of the file into memory, and frees the space of pieces that were read.
// It is for spool.
func (q *queue) fetch() {
	piece := make([]byte, min(spillRead, q.to-q.from))
	n, err := q.spill.ReadAt(piece, q.from)
	if n == 0 && err != nil {
		q.fail(err)
		return
	}
	q.mu.Lock()
	q.mem = append(q.mem, piece[:n]...)
	q.from += int64(n)
	q.mu.Unlock()
	token(q.wake)
	if used := q.from - q.freed; used >= spillStep {
		// A reader that never catches up must not make the file grow for ever.
		if unix.Fallocate(int(q.spill.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.freed, used) == nil {
			q.mu.Lock()
			q.freed += used
			q.give(used)
			q.mu.Unlock()
		}
	}
}

// reset empties a file of which all has been read. It is for spool.
func (q *queue) reset() {
	if err := q.spill.Truncate(0); err != nil {
		q.fail(err)
		return
	}
	q.mu.Lock()
	q.give(q.to - q.freed)
	q.from, q.to, q.freed, q.looked = 0, 0, 0, 0
	q.mu.Unlock()
}

// fail ends a queue whose file cannot be read or written.
func (q *queue) fail(err error) {
	q.lose(err)
	q.kill()
}

// finish lets the reader take what is left and closes its file then.
func (q *queue) finish() {
	q.mu.Lock()
	q.finished = true
	q.mu.Unlock()
	token(q.wake)
}

// kill closes the reader's file now.
func (q *queue) kill() {
	q.mu.Lock()
	q.die()
	q.mu.Unlock()
	q.file.Close()
	token(q.wake)
	token(q.stir)
}

// pause pauses writing to the reader, and has what waits in memory for the file written there. Both are done when the
// channels are closed.
func (q *queue) pause() []<-chan struct{} {
	q.mu.Lock()
	q.stopping = true
	_ = q.file.SetWriteDeadline(time.Unix(1, 0))
	paused := []<-chan struct{}{q.done}
	if q.spooled != nil {
		paused = append(paused, q.spooled)
	}
	q.mu.Unlock()
	token(q.wake)
	token(q.stir)
	return paused
}

// next takes the next piece to write, nil if there is none now. paused is true if there will be none before start, and
// end if there will be none at all.
func (q *queue) next() (b []byte, paused, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.dead:
		return nil, false, true
	case q.stopping:
		return nil, true, false
	case len(q.front) > 0:
	case len(q.mem) > 0:
		q.front, q.mem = q.mem, nil
		token(q.stir)
	case q.finished && q.spooled == nil:
		return nil, false, true
	}
	return q.front, false, false
}

func (q *queue) run(done chan struct{}) {
	defer close(done)
	for range q.wake {
		for {
			b, paused, end := q.next()
			if paused {
				return
			}
			if end {
				q.end()
				return
			}
			if b == nil {
				break
			}
			n, err := q.file.Write(b)
			q.mu.Lock()
			if q.front = b[n:]; len(q.front) == 0 {
				q.front = nil
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				q.die()
			}
			q.mu.Unlock()
		}
	}
}

// end closes the descriptors of a queue that nothing more is written from.
func (q *queue) end() {
	drop := func() {}
	q.mu.Lock()
	q.die()
	q.file.Close()
	q.front, q.mem = nil, nil
	if q.spooled == nil {
		drop = q.drop()
	} else {
		token(q.stir)
	}
	q.mu.Unlock()
	drop()
}

// drop forgets the file, and what waits for it. The caller holds q.mu, nobody works on the file, and the queue is dead.
// What it returns is called without the lock: it may have to wait for the disk.
func (q *queue) drop() func() {
	spill, held := q.spill, q.held()
	q.spill, q.from, q.to, q.freed = nil, 0, 0, 0
	return func() {
		if spill != nil {
			spill.Close()
		}
		q.all.closed(held)
	}
}
