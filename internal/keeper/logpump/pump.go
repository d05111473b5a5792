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
	// idle is how long a pump holds back the beginning of a line for its end.
	idle = 50 * time.Millisecond

	readSize = 256 << 10
	// Smaller writes cost a little more and larger ones may cost far more: the page cache takes larger blocks of memory
	// for them, which a virtual machine's host may have to provide first.
	writeSize = 128 << 10
	// A pipe holds 64 KiB. One that was found full this many times in a row is made larger.
	busyAfter   = 4
	pipeDefault = 64 << 10
	pipeBusy    = 1 << 20 // or what the node allows
)

var (
	writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize); return &b }}
)

// Pump moves one stream of a container into its Log.
type Pump struct {
	log    *Log
	stream Stream
	tag    []byte // " stdout "
	file   *os.File
	raw    syscall.RawConn

	buf     *buffer // what has been read, and how much of it is in the log
	scanned int     // up to where in buf there is no end of the line that begins what is left
	full    int     // reads in a row that found the pipe full
	ended   bool
	step    int           // how much is read at once
	held    time.Duration // how long the beginning of a line is held back for its end
	dropper *dropper      // leaves lines out that are over the rate; nil: none are
	wakes

	mu       sync.Mutex
	stopping bool // Pause was called
	last     bool // End was called: read what there is, do not wait for more
	done     chan struct{}
}

// NewPump reads fd, which it takes over, once it is started: a pipe or a terminal's master.
func NewPump(log *Log, stream Stream, fd int) (*Pump, error) { return AdoptPump(log, stream, fd, nil) }

// AdoptPump is NewPump with what a pump of another process has left, as Held gives it. It takes over all descriptors.
func AdoptPump(log *Log, stream Stream, fd int, held map[Role]int) (_ *Pump, err error) {
	var buf *buffer
	memory, ok := held[Memory]
	relay, both := held[Relay]
	switch {
	case ok && both:
		if buf, err = openBuffer(memory, relay); err != nil {
			log.logger.Error("what another keeper had read is lost", "path", log.path, "stream", stream, "error", err)
		}
	case ok:
		unix.Close(memory)
	case both:
		unix.Close(relay)
	}
	if buf == nil {
		if buf, err = newBuffer(); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			buf.close()
		}
	}()
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
	p := &Pump{log: log, stream: stream, tag: []byte(" " + string(stream) + " "), file: f, raw: raw, buf: buf,
		step: readSize, held: idle, wakes: wakes{wake: make(chan struct{}, 1)}}
	if stream == Stderr {
		buf.stream = 1
	}
	if r := log.rate; r != nil {
		p.step = r.first()
		if r.drop {
			p.dropper = &dropper{rate: r, lost: buf.h.lost}
			buf.lost = &p.dropper.lost
		}
	}
	return p, nil
}

// Start starts the pump, or continues after Pause or Stop.
func (p *Pump) Start() { p.StartAfter(nil) }

// StartAfter is Start for a pump that begins when the channel is closed; nil: at once.
func (p *Pump) StartAfter(ready <-chan struct{}) {
	p.mu.Lock()
	p.stopping = false
	_ = p.file.SetReadDeadline(time.Time{})
	if p.last {
		_ = p.file.SetReadDeadline(time.Unix(1, 0))
	}
	before, done := p.done, make(chan struct{})
	p.done = done
	p.mu.Unlock()
	if isClosed(before) && isClosed(ready) {
		p.begin(done)
		return
	}
	// It was asked to pause, and is still at a write to the log that hangs; or it has not begun yet.
	go func() {
		for _, c := range []<-chan struct{}{before, ready} {
			if c != nil {
				<-c
			}
		}
		p.begin(done)
	}()
}

// isClosed is true for nil, too: there is nothing to wait for.
func isClosed(c <-chan struct{}) bool {
	if c == nil {
		return true
	}
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// begin runs the pump, unless it has ended.
func (p *Pump) begin(done chan struct{}) {
	if p.ended {
		close(done)
		return
	}
	p.log.begins(p.buf)
	go p.run(done)
}

// Done is closed when the pump has ended or was stopped.
func (p *Pump) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Close closes the descriptors of a pump that does not run.
func (p *Pump) Close() {
	p.file.Close()
	p.buf.close()
}

// Ended says whether all was read; valid once Done is closed.
func (p *Pump) Ended() bool { return p.ended }

// End makes the pump read what there is now and then end, though somebody still holds the other side.
func (p *Pump) End() {
	p.mu.Lock()
	p.last = true
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	p.mu.Unlock()
	p.Hasten()
}

// Pause pauses the pump between two reads. It is paused when Done is closed. Start continues.
func (p *Pump) Pause() {
	p.mu.Lock()
	p.stopping = true
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	p.mu.Unlock()
	token(p.wake)
}

// Stop is Pause, and waits until the pump is paused.
func (p *Pump) Stop() {
	p.Pause()
	<-p.Done()
}

// Flush writes the part of a line that a stopped pump has, so that another pump can continue with the stream.
func (p *Pump) Flush() {
	if !p.ended {
		p.flush()
	}
}

// Control calls fn with the descriptor, which stays open meanwhile.
func (p *Pump) Control(fn func(fd int)) error {
	if p.raw == nil { // it had ended when it was saved
		return os.ErrClosed
	}
	return p.raw.Control(func(fd uintptr) { fn(int(fd)) })
}

// Held calls fn with the descriptors of the memory and the relay, which keep the output when this process is killed.
// They stay open during the call.
func (p *Pump) Held(fn func(role Role, fd int)) error {
	if p.buf == nil { // it had ended when it was saved
		return os.ErrClosed
	}
	return p.buf.control(fn)
}

// isIdle says whether the pump has nothing to do if no output arrives for a while.
func (p *Pump) isIdle() bool {
	return len(p.buf.rest()) == 0 && p.buf.high <= idleBuffer && !p.dropper.owes()
}

// deadline bounds the next read if a line waits for its end, or memory is to be given back. It is false if the pump
// is to stop.
func (p *Pump) deadline() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.stopping:
		return false
	case p.last:
	case !p.isIdle():
		_ = p.file.SetReadDeadline(time.Now().Add(p.held))
	default:
		_ = p.file.SetReadDeadline(time.Time{})
	}
	return true
}

func (p *Pump) run(done chan struct{}) {
	defer close(done)
	waiting := false // a deadline is set
	p.take()         // what another pump has read
	for {
		if waiting || !p.isIdle() {
			if !p.deadline() {
				return
			}
			waiting = !p.isIdle()
		}
		var b []byte
		var rerr error
		err := p.raw.Read(func(fd uintptr) bool {
			b, rerr = p.buf.fill(int(fd), p.step)
			return rerr != unix.EAGAIN
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.mu.Lock()
			stopping, last := p.stopping, p.last
			p.mu.Unlock()
			if stopping {
				return
			}
			if last {
				p.drain()
				return
			}
			p.flush()
			p.buf.room()
			p.buf.trim()
			waiting = true
			continue
		}
		if rerr == unix.ENOMEM || rerr == unix.ENOSPC {
			time.Sleep(idle) // the container waits as well, once its pipe is full
			continue
		}
		if err != nil || len(b) == 0 { // the end; EIO is that of a terminal
			p.finish()
			return
		}
		p.log.feed(p.stream, b)
		p.take()
		p.grow(len(b))
		if p.log.rate != nil {
			p.hold()
		}
	}
}

// drain reads without waiting what the container has left, and ends the pump. It returns early if the pump is to stop.
// Another process may hold the other side and write faster than the pump reads, so that it never finds nothing left.
func (p *Pump) drain() {
	for left := p.rest(); left > 0; {
		if p.isStopping() {
			return
		}
		var b []byte
		if err := p.raw.Control(func(fd uintptr) { b, _ = p.buf.fill(int(fd), readSize) }); err != nil || len(b) == 0 {
			break
		}
		left -= len(b)
		p.log.feed(p.stream, b)
		p.take()
	}
	p.finish()
}

// rest is at least as much as is on its way from the container now. A terminal does not say how much the kernel has of
// its output; that is less than a pipe may hold.
func (p *Pump) rest() int {
	n := 0
	_ = p.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return p.buf.waits + max(n, pipeBusy)
}

func (p *Pump) isStopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// finish writes what there is of a last line that has no end, and closes the descriptor. The record of such a line is
// of tag P, so that a client which shows it adds no newline of its own.
func (p *Pump) finish() {
	p.flush()
	if d := p.dropper; d != nil {
		if d.inside != 0 {
			d.endLine()
		}
		p.report(true)
	}
	p.ended = true
	p.Close()
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
			_ = p.raw.Control(func(fd uintptr) { enlarge(int(fd), pipeBusy) })
			enlarge(p.buf.relayFD, readSize)
		}
	}
}

// enlarge gives a pipe the size, or what the node allows.
func enlarge(fd, size int) {
	for ; size > pipeDefault; size /= 2 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size); err == nil {
			return
		}
	}
}

// take formats what was read, but for the beginning of a line whose end has not been. All records of one read bear
// one time: that of the read.
func (p *Pump) take() {
	b := p.buf
	if p.log.path == "" {
		b.put(mark(b.pos, false))
		return
	}
	if b.at() == b.pos {
		return
	}
	buf := writeBuffers.Get().(*[]byte)
	out := (*buf)[:0]
	var stamp [48]byte
	now := time.Now()
	head := append(appendTime(stamp[:0], now), p.tag...)
	full := append(head, 'F', ' ')
	at, open := b.at(), b.open()
	dropper, whole := p.dropper, MaxLine
	if dropper != nil {
		whole = -1 // it is asked for each line below: here a check would cost a nanosecond a line without a limit
		out = append(out, dropper.begin(head, now, false)...)
	}
	text := b.mem[:b.pos]
	for scan := max(at, p.scanned); ; scan = at {
		end := bytes.IndexByte(text[scan:], '\n')
		if end >= 0 {
			end += scan
		}
		if end >= 0 && end-at <= whole { // nearly all lines
			if len(out)+len(stamp)+end-at+1 > cap(out) {
				p.log.write(out, b, mark(at, open))
				out = out[:0]
			}
			n := len(out)
			*(*[len(stamp)]byte)(out[n:cap(out)]) = stamp // more than full has: that takes no call
			out = out[:n+len(full)+end+1-at]
			copy(out[n+len(full):], text[at:end+1])
			at, open = end+1, false
			continue
		}
		if dropper != nil && end >= 0 && end-at <= MaxLine {
			if dropper.admit(len(full)+end+1-at, open, true, now) {
				if len(out)+len(full)+end+1-at > cap(out) {
					p.log.write(out, b, mark(at, open))
					out = out[:0]
				}
				out = append(append(out, full...), text[at:end+1]...)
			}
			at, open = end+1, false
			continue
		}
		if end < 0 && len(text)-at <= MaxLine { // what has the longest length may still be a whole line
			break
		}
		if dropper != nil && !dropper.admit(len(head)+MaxLine+3, open, false, now) {
			at, open = at+MaxLine, true
			continue
		}
		if len(out)+len(head)+MaxLine+4 > cap(out) {
			p.log.write(out, b, mark(at, open))
			out = out[:0]
		}
		out = record(out, head, text[at:at+MaxLine])
		totals.cut.Add(1)
		at, open = at+MaxLine, true
	}
	p.log.write(out, b, mark(at, open))
	*buf = out[:0]
	writeBuffers.Put(buf)
	p.scanned = 0
	if at == bufferBase { // it stays where it is
		p.scanned = b.pos
	}
}

// record appends one record of a part of a line.
func record(out, head, line []byte) []byte {
	out = append(append(out, head...), 'P', ' ')
	return append(append(out, line...), '\n')
}

// flush writes the beginning of a line that waits for its end.
func (p *Pump) flush() {
	if p.dropper != nil {
		p.report(false)
	}
	rest := p.buf.rest()
	if len(rest) == 0 {
		return
	}
	now := time.Now()
	head := append(appendTime(nil, now), p.tag...)
	if p.dropper != nil && !p.dropper.admit(len(head)+len(rest)+3, p.buf.open(), false, now) {
		p.log.write(nil, p.buf, mark(p.buf.pos, true))
	} else {
		p.log.write(record(make([]byte, 0, len(head)+MaxLine+4), head, rest), p.buf, mark(p.buf.pos, true))
	}
	p.scanned = 0
}

// report has the log say how much was left out of it, if lines come again, or never.
func (p *Pump) report(never bool) {
	now := time.Now()
	head := append(appendTime(nil, now), p.tag...)
	if b := p.dropper.begin(head, now, never); b != nil {
		p.log.write(b, p.buf, mark(p.buf.at(), p.buf.open()))
	}
}

// appendTime appends a time as RFC 3339 with nine digits, which every reader of RFC3339Nano takes.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
}

// PumpState is a stopped pump, for the program that takes the place of this one.
type PumpState struct {
	FD   int  `json:"fd"` // -1: it has ended
	Last bool `json:"last,omitempty"`
	// Held are the descriptors that Held gives; none: from an earlier version, which knew none of them.
	Held map[Role]int `json:"held,omitempty"`
	// Pending and Open are what these have of a line, from such a version, and for one.
	Pending []byte `json:"pending,omitempty"`
	Open    bool   `json:"open,omitempty"`
}

// Save describes a stopped pump. The descriptors stay the pump's.
func (p *Pump) Save() (PumpState, error) {
	if p.ended {
		return PumpState{FD: -1}, nil
	}
	s := PumpState{Pending: p.buf.rest(), Open: p.buf.open(), Last: p.last, Held: map[Role]int{}}
	err := p.Control(func(fd int) { s.FD = fd })
	if err == nil {
		err = p.Held(func(role Role, fd int) { s.Held[role] = fd })
	}
	if err != nil {
		return s, fmt.Errorf("save pump of %s: %w", p.stream, err)
	}
	return s, nil
}

// RestorePump makes a pump from a saved one.
func RestorePump(log *Log, stream Stream, s PumpState) (*Pump, error) {
	if s.FD < 0 {
		return &Pump{log: log, stream: stream, ended: true}, nil
	}
	p, err := AdoptPump(log, stream, s.FD, s.Held)
	if err != nil {
		return nil, err
	}
	p.last = s.Last
	if len(s.Held) == 0 {
		p.buf.pos += copy(p.buf.mem[bufferBase:], s.Pending)
		p.buf.reading(0)
		p.buf.put(mark(bufferBase, s.Open))
	}
	return p, nil
}
