package logpump

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
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
	// spareShare is which share of that file system stays free of spill files: one in so many blocks.
	spareShare = 10
)

// DefaultBacklog is how many bytes of a stream are kept for a client that does not take them.
const DefaultBacklog = 256 << 20

// client is one attached client.
type client struct {
	queues map[Stream]*queue
	lost   error // why it was cut off; nobody writes to it any more
}

func (c *client) finish() {
	for _, q := range c.queues {
		q.finish()
	}
}

func (c *client) cut() {
	for _, q := range c.queues {
		q.kill()
	}
}

// Attach gives everything that is read from now on to the files, which it takes over; nil is not wanted. They are
// closed when the log is, after all is written, or when a write fails, and both when more than backlog bytes of one (0:
// DefaultBacklog) would have to be kept; Detach tells then.
func (l *Log) Attach(id string, stdout, stderr *os.File, backlog int64) error {
	c := &client{queues: map[Stream]*queue{}}
	for s, f := range map[Stream]*os.File{Stdout: stdout, Stderr: stderr} {
		if f != nil {
			c.queues[s] = newQueue(f, l.spill, backlog)
		}
	}
	l.amu.Lock()
	defer l.amu.Unlock()
	if _, ok := l.clients[id]; ok {
		return os.ErrExist
	}
	if l.clients == nil {
		l.clients = map[string]*client{}
	}
	l.clients[id] = c
	for _, q := range c.queues {
		q.start()
	}
	if l.finished {
		c.finish()
	}
	return nil
}

// Detach cuts a client off. The error tells why it had been cut off before.
func (l *Log) Detach(id string) error {
	l.amu.Lock()
	c, ok := l.clients[id]
	delete(l.clients, id)
	l.amu.Unlock()
	if !ok {
		return nil
	}
	c.cut()
	return c.lost
}

// feed hands a piece of output to every client that wants it.
func (l *Log) feed(s Stream, b []byte) {
	l.amu.Lock()
	defer l.amu.Unlock()
	for id, c := range l.clients {
		q := c.queues[s]
		if q == nil {
			continue
		}
		switch err := q.push(b); {
		case err == nil:
		case errors.Is(err, errGone):
			// This stream has nobody who reads it any more. The client is gone when neither has.
			delete(c.queues, s)
			if len(c.queues) == 0 {
				delete(l.clients, id)
			}
		default:
			// A client that misses a piece is worse off than one that is cut off and told why.
			c.cut()
			c.queues, c.lost = nil, fmt.Errorf("cut off: it does not take what the container writes to %s, and %w", s, err)
			l.logger.Warn("attached client cut off", "attach", id, "error", c.lost)
		}
	}
}

// errGone: the reader is.
var errGone = errors.New("nobody reads")

// queue holds what one reader has yet to take: in memory first, then in an unlinked file, in that order.
type queue struct {
	file    *os.File
	dir     string
	backlog int64

	mu       sync.Mutex
	wake     chan struct{} // one token: there is something to do
	front    []byte        // being written
	mem      []byte
	spill    *os.File
	from, to int64 // what of spill is unread
	freed    int64 // what of its beginning takes no room any more
	looked   int64 // up to where there was room when it was last looked
	finished bool  // nothing more comes
	dead     bool  // the reader is gone
	stopping bool
	done     chan struct{}
}

func newQueue(f *os.File, dir string, backlog int64) *queue {
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	return &queue{file: pollable(f), dir: dir, backlog: backlog, wake: make(chan struct{}, 1)}
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
	q.stopping = false
	_ = q.file.SetWriteDeadline(time.Time{})
	q.done = make(chan struct{})
	q.mu.Unlock()
	go q.run(q.done)
	q.kick()
}

func (q *queue) kick() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// push keeps a copy of b for the reader: errGone if there is none, else the reason why it cannot be kept.
func (q *queue) push(b []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return errGone
	}
	if q.from == q.to && len(q.mem)+len(b) <= memoryLimit {
		q.mem = append(q.mem, b...)
	} else if err := q.store(b); err != nil {
		return err
	}
	q.kick()
	return nil
}

func (q *queue) store(b []byte) error {
	if held := q.to - q.freed + int64(len(b)); held > q.backlog {
		return fmt.Errorf("no more than %d bytes are kept for it", q.backlog)
	}
	if q.to+int64(len(b)) > q.looked {
		if err := room(q.dir); err != nil {
			return err
		}
		q.looked = q.to + spillStep
	}
	if q.spill == nil {
		fd, err := unix.Open(q.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
		if err == nil {
			q.spill = os.NewFile(uintptr(fd), "spill")
		} else if q.spill, err = unlinked(q.dir); err != nil {
			return err
		}
	}
	n, err := q.spill.WriteAt(b, q.to)
	q.to += int64(n)
	return err
}

// room is an error if a file system has little left: one slow client must not take it from everybody else.
func room(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Blocks > 0 && st.Bavail < st.Blocks/spareShare {
		return fmt.Errorf("less than a %dth of the file system of %s is free to keep it", spareShare, dir)
	}
	return nil
}

// unlinked makes a file without a name where O_TMPFILE is not known.
func unlinked(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "spill-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// finish lets the reader take what is left and closes its file then.
func (q *queue) finish() {
	q.mu.Lock()
	q.finished = true
	q.mu.Unlock()
	q.kick()
}

// kill closes the reader's file now.
func (q *queue) kill() {
	q.mu.Lock()
	q.dead = true
	q.mu.Unlock()
	q.file.Close()
	q.kick()
}

// stop pauses writing and waits for that.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopping = true
	_ = q.file.SetWriteDeadline(time.Unix(1, 0))
	done := q.done
	q.mu.Unlock()
	q.kick()
	<-done
}

// next takes the next piece to write, nil if there is none now; end is true when none will come.
func (q *queue) next() (b []byte, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.dead || q.stopping:
		return nil, true
	case len(q.front) > 0:
	case len(q.mem) > 0:
		q.front, q.mem = q.mem, nil
	case q.from < q.to:
		b := make([]byte, min(spillRead, q.to-q.from))
		n, err := q.spill.ReadAt(b, q.from)
		if n == 0 && err != nil {
			q.dead = true
			return nil, true
		}
		q.front = b[:n]
		if q.from += int64(n); q.from == q.to {
			_ = q.spill.Truncate(0)
			q.from, q.to, q.freed, q.looked = 0, 0, 0, 0
		} else if q.from-q.freed >= spillStep {
			// A reader that never catches up must not make the file grow for ever.
			if err := unix.Fallocate(int(q.spill.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.freed, q.from-q.freed); err == nil {
				q.freed = q.from
			}
		}
	case q.finished:
		return nil, true
	}
	return q.front, false
}

func (q *queue) run(done chan struct{}) {
	defer close(done)
	for range q.wake {
		for {
			b, end := q.next()
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
				q.dead = true
			}
			q.mu.Unlock()
		}
	}
}

// end closes what is no longer needed, unless writing only pauses.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopping && !q.dead {
		return
	}
	q.dead = true
	q.file.Close()
	q.front, q.mem = nil, nil
	if q.spill != nil {
		q.spill.Close()
		q.spill = nil
	}
}

// QueueState is a stopped queue.
type QueueState struct {
	Stream Stream `json:"stream"`
	FD     int    `json:"fd"`
	Memory int    `json:"memory"` // a memfd with what was in memory; -1: none
	Spill  int    `json:"spill"`  // -1: none
	From   int64  `json:"from,omitempty"`
	To     int64  `json:"to,omitempty"`
	Freed  int64  `json:"freed,omitempty"`

	Backlog int64 `json:"backlog,omitempty"`
}

// LogState is a Log with its clients, all stopped, as another image of the program takes it over.
type LogState struct {
	Path    string `json:"path,omitempty"`
	FD      int    `json:"fd"` // -1: not open
	Dropped uint64 `json:"dropped,omitempty"`
	// Finished: no more output comes.
	Finished bool                    `json:"finished,omitempty"`
	Clients  map[string][]QueueState `json:"clients,omitempty"`
	// Lost are clients that were cut off and have not been told why.
	Lost map[string]string `json:"lost,omitempty"`
}

// Stop pauses writing to clients. The pumps are stopped before.
func (l *Log) Stop() {
	l.amu.Lock()
	defer l.amu.Unlock()
	for _, c := range l.clients {
		for _, q := range c.queues {
			q.stop()
		}
	}
}

// Start goes on after Stop.
func (l *Log) Start() {
	l.amu.Lock()
	defer l.amu.Unlock()
	for _, c := range l.clients {
		for _, q := range c.queues {
			q.start()
		}
	}
}

// Save describes a stopped log. Descriptors stay the log's, but for the memfds.
func (l *Log) Save() (LogState, error) {
	s := LogState{Path: l.path, FD: -1, Dropped: l.dropped, Finished: l.finished}
	if l.file != nil {
		s.FD = int(l.file.Fd())
	}
	for id, c := range l.clients {
		if c.lost != nil {
			if s.Lost == nil {
				s.Lost = map[string]string{}
			}
			s.Lost[id] = c.lost.Error()
		}
		for stream, q := range c.queues {
			if q.dead {
				continue
			}
			qs := QueueState{Stream: stream, Memory: -1, Spill: -1, From: q.from, To: q.to, Freed: q.freed, Backlog: q.backlog}
			raw, err := q.file.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { qs.FD = int(fd) })
			}
			if err != nil {
				return s, fmt.Errorf("save attached client: %w", err)
			}
			if q.spill != nil {
				qs.Spill = int(q.spill.Fd())
			}
			if b := append(append([]byte(nil), q.front...), q.mem...); len(b) > 0 {
				if qs.Memory, err = memory(b); err != nil {
					return s, err
				}
			}
			if s.Clients == nil {
				s.Clients = map[string][]QueueState{}
			}
			s.Clients[id] = append(s.Clients[id], qs)
		}
	}
	return s, nil
}

// memory puts bytes into a memfd.
func memory(b []byte) (int, error) {
	fd, err := unix.MemfdCreate("berth-attach", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	for done := 0; done < len(b); {
		n, err := unix.Pwrite(fd, b[done:], int64(done))
		if err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError("write", err)
		}
		done += n
	}
	return fd, nil
}

// Restore makes a log from a saved one. Its clients go on once Start is called.
func Restore(s LogState, spill string, logger *slog.Logger) *Log {
	l := &Log{path: s.Path, spill: spill, logger: logger, dropped: s.Dropped, finished: s.Finished}
	if s.FD >= 0 {
		l.file = os.NewFile(uintptr(s.FD), s.Path)
	}
	if len(s.Clients)+len(s.Lost) > 0 {
		l.clients = map[string]*client{}
	}
	for id, why := range s.Lost {
		l.clients[id] = &client{lost: errors.New(why)}
	}
	for id, queues := range s.Clients {
		c := &client{queues: map[Stream]*queue{}}
		for _, qs := range queues {
			q := newQueue(os.NewFile(uintptr(qs.FD), "attached"), spill, qs.Backlog)
			q.from, q.to, q.freed, q.finished = qs.From, qs.To, qs.Freed, s.Finished
			if qs.Spill >= 0 {
				q.spill = os.NewFile(uintptr(qs.Spill), "spill")
			}
			if qs.Memory >= 0 {
				q.front = recall(qs.Memory)
			}
			c.queues[qs.Stream] = q
		}
		l.clients[id] = c
	}
	return l
}

// recall reads a memfd and closes it.
func recall(fd int) []byte {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil
	}
	b := make([]byte, st.Size)
	n, _ := unix.Pread(fd, b, 0)
	return b[:max(n, 0)]
}
