package logpump

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxLine is the longest content of one record, in bytes; longer lines are split (CRI: 16 KiB).
	MaxLine = 16 << 10
	// idle is how long the beginning of a line is held back for its end.
	idle = 50 * time.Millisecond

	readSize = 256 << 10
	// Smaller writes cost a little more and larger ones may cost far more: the page cache takes larger blocks of memory for them, which
	// a virtual machine's host may have to provide first.
	writeSize = 128 << 10
	// A pipe holds 64 KiB. One that was found full this many times in a row is made larger.
	busyAfter   = 4
	pipeDefault = 64 << 10
	pipeBusy    = 1 << 20 // or what the node allows
)

var (
	readBuffers  = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}
	writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize); return &b }}
)

// Pump moves one stream of a container into its Log.
type Pump struct {
	log    *Log
	stream Stream
	tag    []byte // " stdout "
	file   *os.File
	raw    syscall.RawConn
	done   chan struct{}

	// pending is the beginning of a line whose end has not been read; open says that a P record of it is in the log.
	pending []byte
	open    bool
	full    int // reads in a row that found the pipe full
	ended   bool

	mu       sync.Mutex
	stopping bool // Stop was called
	last     bool // End was called: read what there is, do not wait for more
}

// NewPump reads fd, which it takes over, once it is started: a pipe or a terminal's master.
func NewPump(log *Log, stream Stream, fd int) (*Pump, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), string(stream))
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Pump{log: log, stream: stream, tag: []byte(" " + string(stream) + " "), file: f, raw: raw}, nil
}

// Start begins or goes on pumping.
func (p *Pump) Start() {
	p.mu.Lock()
	p.stopping = false
	_ = p.file.SetReadDeadline(time.Time{})
	if p.last {
		_ = p.file.SetReadDeadline(time.Unix(1, 0))
	}
	p.mu.Unlock()
	done := make(chan struct{})
	p.done = done
	if p.ended {
		close(done)
		return
	}
	go p.run(done)
}

// Done is closed when the pump has ended or was stopped.
func (p *Pump) Done() <-chan struct{} { return p.done }

// Ended says whether all was read; valid once Done is closed.
func (p *Pump) Ended() bool { return p.ended }

// End makes the pump read what there is now and then end, though somebody still holds the other side.
func (p *Pump) End() {
	p.mu.Lock()
	p.last = true
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	p.mu.Unlock()
}

// Stop pauses the pump between two reads and waits for that. Start goes on.
func (p *Pump) Stop() {
	p.mu.Lock()
	p.stopping = true
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	p.mu.Unlock()
	<-p.done
}

// Flush writes what a stopped pump has of a line, for somebody else to go on.
func (p *Pump) Flush() {
	if !p.ended {
		p.flush(false)
	}
}

// Control calls fn with the descriptor, which stays open meanwhile.
func (p *Pump) Control(fn func(fd int)) error {
	if p.raw == nil { // it had ended when it was saved
		return os.ErrClosed
	}
	return p.raw.Control(func(fd uintptr) { fn(int(fd)) })
}

// deadline bounds the next read if a line waits for its end. It is false if the pump is to stop.
func (p *Pump) deadline() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.stopping:
		return false
	case p.last:
	case len(p.pending) > 0:
		_ = p.file.SetReadDeadline(time.Now().Add(idle))
	default:
		_ = p.file.SetReadDeadline(time.Time{})
	}
	return true
}

func (p *Pump) run(done chan struct{}) {
	defer close(done)
	waiting := false // a deadline is set
	for {
		if waiting || len(p.pending) > 0 {
			if !p.deadline() {
				return
			}
			waiting = len(p.pending) > 0
		}
		var buf *[]byte
		var n int
		var rerr error
		err := p.raw.Read(func(fd uintptr) bool {
			n, buf, rerr = read(int(fd))
			return buf != nil || rerr != unix.EAGAIN
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.mu.Lock()
			stopping, last := p.stopping, p.last
			p.mu.Unlock()
			if stopping {
				return
			}
			if last && p.drain() {
				return
			}
			p.flush(false)
			waiting = true
			continue
		}
		if err != nil || n == 0 { // the end; EIO is that of a terminal
			p.finish()
			return
		}
		p.take((*buf)[:n])
		readBuffers.Put(buf)
		p.grow(n)
	}
}

// read reads once, with a buffer that it takes only if there is something.
func read(fd int) (int, *[]byte, error) {
	buf := readBuffers.Get().(*[]byte)
	for {
		n, err := unix.Read(fd, *buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			readBuffers.Put(buf)
			return 0, nil, err
		}
		return n, buf, nil
	}
}

// drain reads without waiting until nothing is left, and ends the pump.
func (p *Pump) drain() bool {
	for {
		var buf *[]byte
		var n int
		if err := p.raw.Control(func(fd uintptr) { n, buf, _ = read(int(fd)) }); err != nil || buf == nil {
			p.finish()
			return true
		}
		p.take((*buf)[:n])
		readBuffers.Put(buf)
	}
}

// finish ends the last line and closes the descriptor.
func (p *Pump) finish() {
	if len(p.pending) > 0 || p.open {
		p.flush(true)
	}
	p.ended = true
	p.file.Close()
}

// grow makes the pipe larger once it proves busy.
func (p *Pump) grow(n int) {
	switch {
	case p.full < 0: // grown, or not a pipe
	case n < pipeDefault:
		p.full = 0
	default:
		if p.full++; p.full >= busyAfter {
			p.full = -1
			_ = p.raw.Control(func(fd uintptr) {
				for size := pipeBusy; size > pipeDefault; size /= 2 {
					if _, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size); err == nil {
						return
					}
				}
			})
		}
	}
}

// take formats what was read. All records of one read bear one time: that of the read.
func (p *Pump) take(b []byte) {
	p.log.feed(p.stream, b)
	if p.log.path == "" {
		return
	}
	buf := writeBuffers.Get().(*[]byte)
	out := (*buf)[:0]
	var stamp [48]byte
	head := append(appendTime(stamp[:0], time.Now()), p.tag...)
	full := append(head, 'F', ' ')
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i >= 0 && i <= MaxLine && len(p.pending) == 0 { // nearly all lines
			if len(out)+len(full)+i+1 > cap(out) {
				p.log.write(out)
				out = out[:0]
			}
			out = append(append(out, full...), b[:i+1]...)
			b, p.open = b[i+1:], false
			continue
		}
		line, whole := b, false
		if i >= 0 {
			line, whole, b = b[:i], true, b[i+1:]
		} else {
			b = nil
		}
		for {
			room := MaxLine - len(p.pending)
			if len(line) < room || whole && len(line) == room {
				break
			}
			out = p.record(out, head, 'P', line[:room])
			line = line[room:]
		}
		if !whole {
			if len(line) > 0 {
				p.pending = append(p.pending, line...)
			}
			break
		}
		out = p.record(out, head, 'F', line)
	}
	p.log.write(out)
	*buf = out[:0]
	writeBuffers.Put(buf)
}

// record appends one record: the pending bytes and line. It writes out first when out gets full.
func (p *Pump) record(out, head []byte, tag byte, line []byte) []byte {
	if len(out)+len(head)+MaxLine+4 > cap(out) {
		p.log.write(out)
		out = out[:0]
	}
	out = append(out, head...)
	out = append(out, tag, ' ')
	if len(p.pending) > 0 {
		out = append(out, p.pending...)
		p.pending = nil
	}
	out = append(out, line...)
	p.open = tag == 'P'
	return append(out, '\n')
}

// flush writes the beginning of a line that waits for its end, as the line's end if whole.
func (p *Pump) flush(whole bool) {
	tag := byte('P')
	if whole {
		tag = 'F'
	} else if len(p.pending) == 0 {
		return
	}
	head := append(appendTime(nil, time.Now()), p.tag...)
	out := make([]byte, 0, len(head)+MaxLine+4)
	p.log.write(p.record(out, head, tag, nil))
}

// appendTime appends a time as RFC 3339 with nine digits, which every reader of RFC3339Nano takes.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
}

// PumpState is a stopped pump, as another image of the program takes it over.
type PumpState struct {
	FD      int    `json:"fd"` // -1: it has ended
	Pending []byte `json:"pending,omitempty"`
	Open    bool   `json:"open,omitempty"`
	Last    bool   `json:"last,omitempty"`
}

// Save describes a stopped pump. The descriptor stays the pump's.
func (p *Pump) Save() (PumpState, error) {
	if p.ended {
		return PumpState{FD: -1}, nil
	}
	s := PumpState{Pending: p.pending, Open: p.open, Last: p.last}
	if err := p.Control(func(fd int) { s.FD = fd }); err != nil {
		return s, fmt.Errorf("save pump of %s: %w", p.stream, err)
	}
	return s, nil
}

// RestorePump makes a pump from a saved one.
func RestorePump(log *Log, stream Stream, s PumpState) (*Pump, error) {
	if s.FD < 0 {
		return &Pump{log: log, stream: stream, ended: true}, nil
	}
	p, err := NewPump(log, stream, s.FD)
	if err != nil {
		return nil, err
	}
	p.pending, p.open, p.last = s.Pending, s.Open, s.Last
	return p, nil
}
