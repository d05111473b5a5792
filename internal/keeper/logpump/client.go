package logpump

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

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
// closed when the log is, after all is written, or when a write fails, and both when more of one would have to be kept
// than keep says, or than its file system takes; Detach tells then. The error is os.ErrExist for a client that is
// attached, and the files are closed then too.
func (l *Log) Attach(id string, stdout, stderr *os.File, keep Keep) error {
	l.backlogs.limit(keep.Total)
	l.amu.Lock()
	defer l.amu.Unlock()
	_, attached := l.clients[id]
	c := &client{queues: map[Stream]*queue{}}
	for s, f := range map[Stream]*os.File{Stdout: stdout, Stderr: stderr} {
		switch {
		case f == nil:
		case attached:
			f.Close()
		default:
			c.queues[s] = l.newQueue(id, c, s, f, keep)
		}
	}
	if attached {
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
			l.lose(id, c, s, err)
		}
	}
}

// newQueue is what a client has yet to take of a stream.
func (l *Log) newQueue(id string, c *client, s Stream, f *os.File, keep Keep) *queue {
	return newQueue(f, l.backlogs, keep, func(err error) {
		l.amu.Lock()
		defer l.amu.Unlock()
		if l.clients[id] == c && c.lost == nil {
			l.lose(id, c, s, err)
		}
	})
}

// lose disconnects a client with a reason: that is better than output with a gap.
// The caller holds l.amu.
func (l *Log) lose(id string, c *client, s Stream, err error) {
	c.cut()
	c.queues, c.lost = nil, fmt.Errorf("cut off: it does not take what the container writes to %s, and %w", s, err)
	l.logger.Warn("attached client cut off", "attach_id", id, "error", c.lost)
}

// errGone: the reader is.
var errGone = errors.New("nobody reads")

// QueueState is a stopped queue.
type QueueState struct {
	Stream Stream `json:"stream"`
	FD     int    `json:"fd"`
	Memory int    `json:"memory"` // a memfd with what was in memory; -1: none
	Spill  int    `json:"spill"`  // -1: none
	From   int64  `json:"from,omitempty"`
	To     int64  `json:"to,omitempty"`
	Freed  int64  `json:"freed,omitempty"`

	Backlog int64  `json:"backlog,omitempty"`
	Total   int64  `json:"total,omitempty"` // as Keep has it, of all clients
	Dir     string `json:"dir,omitempty"`
}

// LogState is a Log with its clients, all stopped, for the program that takes the place of this one.
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

// Pause pauses writing to clients, which is done when the channels are closed. The pumps are paused before.
func (l *Log) Pause() (paused []<-chan struct{}) {
	// Not under the lock: a queue whose file cannot be written to has its client cut off.
	l.amu.Lock()
	var queues []*queue
	for _, c := range l.clients {
		for _, q := range c.queues {
			queues = append(queues, q)
		}
	}
	l.amu.Unlock()
	for _, q := range queues {
		paused = append(paused, q.pause()...)
	}
	return paused
}

// Stop is Pause, and waits until it is done.
func (l *Log) Stop() {
	for _, paused := range l.Pause() {
		<-paused
	}
}

// Start lets the clients go on after Pause, or after Restore. The pumps are started after that: what they bring before
// has to wait in a file.
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
			qs := QueueState{Stream: stream, Memory: -1, Spill: -1, From: q.from, To: q.to, Freed: q.freed,
				Backlog: q.backlog, Total: l.backlogs.limited(), Dir: q.dir}
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
				if qs.Memory, err = memory(b); err != nil { // it is -1 then
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

// Restore makes a log from a saved one. Its clients continue once Start is called.
func Restore(s LogState, backlogs *Backlogs, logger *slog.Logger) *Log {
	l := &Log{path: s.Path, backlogs: backlogs, logger: logger, dropped: s.Dropped, finished: s.Finished}
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
			backlogs.limit(qs.Total)
			q := l.newQueue(id, c, qs.Stream, os.NewFile(uintptr(qs.FD), "attached"), Keep{Dir: qs.Dir, Backlog: qs.Backlog})
			q.from, q.to, q.freed, q.finished = qs.From, qs.To, qs.Freed, s.Finished
			backlogs.adopt(q.held())
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
