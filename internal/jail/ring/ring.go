package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	slots = 2
	// SlotSize is how much passes at a time. Less wakes the other process more often, more does not fit the processor's
	// caches.
	SlotSize = 1 << 20

	size = slots * SlotSize
)

// token is a message on the socket of a ring: the writer's says how many bytes a slot has, the reader's that a slot
// is free again.
const (
	tokenSize = 4
	// ended, in place of a number of bytes, is the end of the stream. A socket that ends without it is a stream
	// that broke.
	ended = 0
)

// Direction says which way a ring goes, seen from the process that makes it.
type Direction int

const (
	ToPeer Direction = iota
	FromPeer
)

// Pair is a ring before its other end is with another process: Memory and Socket are what the other process gets.
type Pair struct {
	Memory, Socket *os.File
	own            end
	direction      Direction
}

// New makes a ring. The caller closes Memory and Socket once the peer has them, and takes the Writer or the Reader.
func New(d Direction) (*Pair, error) {
	memory, err := memfd()
	if err != nil {
		return nil, err
	}
	mapped, err := unix.Mmap(int(memory.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		memory.Close()
		return nil, os.NewSyscallError("mmap", err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if d == ToPeer {
		// Not even a hostile reader changes what this process has written and has judged.
		seals |= unix.F_SEAL_FUTURE_WRITE
	}
	_, err = unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl(F_ADD_SEALS)", err), unix.Munmap(mapped), memory.Close())
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("socketpair", err), unix.Munmap(mapped), memory.Close())
	}
	// This side waits in the runtime's poller, so that Close ends a wait; the peer's waits in its system call.
	err = unix.SetNonblock(fds[0], true)
	p := &Pair{
		Memory: memory, Socket: os.NewFile(uintptr(fds[1]), "ring"), direction: d,
		own: end{memory: mapped, socket: os.NewFile(uintptr(fds[0]), "ring")},
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl(F_SETFL)", err), p.Close())
	}
	return p, nil
}

func memfd() (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// A host may refuse memory that could be executed (vm.memfd_noexec); a kernel before 6.3 does not know the flag.
	fd, err := unix.MemfdCreate("berth-ring", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("berth-ring", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "berth-ring")
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, errors.Join(os.NewSyscallError("ftruncate", err), f.Close())
	}
	return f, nil
}

// Writer is this process's end of a ring to the peer.
func (p *Pair) Writer() *Writer {
	if p.direction != ToPeer {
		panic("a ring from the peer has no writer here")
	}
	return &Writer{end: p.own}
}

// Reader is this process's end of a ring from the peer.
func (p *Pair) Reader() *Reader {
	if p.direction != FromPeer {
		panic("a ring to the peer has no reader here")
	}
	return &Reader{end: p.own}
}

// Close closes what the peer would have got, and this process's end if neither Writer nor Reader was taken.
func (p *Pair) Close() error { return errors.Join(p.ClosePeer(), p.own.Close()) }

// ClosePeer closes what the peer has got.
func (p *Pair) ClosePeer() error { return errors.Join(p.Memory.Close(), p.Socket.Close()) }

// OpenWriter is the end of a ring that another process has made to read from. Both files are closed with it.
func OpenWriter(memory, socket *os.File) (*Writer, error) {
	e, err := open(memory, socket, unix.PROT_READ|unix.PROT_WRITE)
	return &Writer{end: e}, err
}

// OpenReader is the end of a ring that another process has made to write to.
func OpenReader(memory, socket *os.File) (*Reader, error) {
	e, err := open(memory, socket, unix.PROT_READ)
	return &Reader{end: e}, err
}

func open(memory, socket *os.File, prot int) (end, error) {
	defer memory.Close()
	mapped, err := unix.Mmap(int(memory.Fd()), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return end{}, os.NewSyscallError("mmap", err)
	}
	return end{memory: mapped, socket: socket}, nil
}

// end is what both ends of a ring have. It belongs to one goroutine, but for hangUp.
type end struct {
	memory []byte
	socket *os.File
	next   int // the slot that is filled or emptied next
}

func (e *end) slot() []byte {
	at := e.next % slots * SlotSize
	return e.memory[at : at+SlotSize : at+SlotSize]
}

func (e *end) send(n int) error {
	var token [tokenSize]byte
	binary.NativeEndian.PutUint32(token[:], uint32(n))
	_, err := e.socket.Write(token[:])
	return err
}

func (e *end) receive() (int, error) {
	var token [tokenSize]byte
	_, err := io.ReadFull(e.socket, token[:])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return int(binary.NativeEndian.Uint32(token[:])), err
}

// HangUp ends the wait of this end, and the peer's. Unlike Close it may be called by any goroutine.
func (e *end) HangUp() { _ = e.socket.Close() }

// Close frees the memory: nobody may use what Slot or Next returned.
func (e *end) Close() error {
	err := e.socket.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	if e.memory != nil {
		err = errors.Join(err, unix.Munmap(e.memory))
		e.memory = nil
	}
	return err
}

// Writer is the end of a ring that bytes are put into.
type Writer struct {
	end
	filled int // slots that the reader has not given back
	used   int // bytes of the slot that Write fills
}

// Slot waits for memory to fill. It is the same until Commit.
func (w *Writer) Slot() ([]byte, error) {
	for w.filled >= slots {
		if _, err := w.receive(); err != nil {
			return nil, err
		}
		w.filled--
	}
	return w.slot(), nil
}

// Commit gives the first n bytes of the slot to the reader.
func (w *Writer) Commit(n int) error {
	if n == 0 {
		return nil
	}
	w.filled++
	w.next++
	return w.send(n)
}

// Write fills slots, and passes on those that are full.
func (w *Writer) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		slot, err := w.Slot()
		if err != nil {
			return written, err
		}
		n := copy(slot[w.used:], p)
		w.used += n
		written += n
		p = p[n:]
		if w.used == SlotSize {
			if err := w.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (w *Writer) flush() error {
	n := w.used
	w.used = 0
	return w.Commit(n)
}

// ReadFrom fills slots from r, up to its end.
func (w *Writer) ReadFrom(r io.Reader) (total int64, err error) {
	for {
		slot, err := w.Slot()
		if err != nil {
			return total, err
		}
		// Not io.ReadFull: it would make an end too soon that r reports look like the end of r.
		for err == nil && w.used < SlotSize {
			var n int
			n, err = r.Read(slot[w.used:])
			w.used += n
			total += int64(n)
		}
		if e := w.flush(); e != nil {
			return total, e
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// End says that the stream is whole.
func (w *Writer) End() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.send(ended)
}

// Reader is the end of a ring that bytes are taken from.
type Reader struct {
	end
	holds bool   // a slot that the writer waits for
	rest  []byte // of it, for Read
	whole bool   // the stream has ended as it should
}

// Next waits for bytes, which are the caller's until the next call. At the end of the stream it returns io.EOF;
// a writer that went away before is io.ErrUnexpectedEOF.
func (r *Reader) Next() ([]byte, error) {
	if r.whole {
		return nil, io.EOF
	}
	if r.holds {
		r.holds = false
		r.next++
		// A writer that has said all and gone away wants no slot back: what it said is still there to be received.
		if err := r.send(1); err != nil && !errors.Is(err, unix.EPIPE) {
			return nil, err
		}
	}
	n, err := r.receive()
	if err != nil {
		return nil, brokenOff(err)
	}
	if n == ended {
		r.whole = true
		return nil, io.EOF
	}
	if n > SlotSize {
		return nil, fmt.Errorf("a slot of %d bytes, of %d", n, SlotSize)
	}
	r.holds = true
	return r.slot()[:n], nil
}

// brokenOff makes all ways in which a socket tells that its peer is gone the same.
func brokenOff(err error) error {
	if errors.Is(err, unix.ECONNRESET) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *Reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		b, err := r.Next()
		if err != nil {
			return 0, err
		}
		r.rest = b
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
