package logpump

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Role says what a descriptor is of those in which what a pump has read outlives its process.
type Role string

const (
	Memory Role = "memory" // the output that was read, and how much of it is in the log
	Relay  Role = "relay"  // a pipe between the container's and that memory
)

// buffer is memory into which a pump reads and from which it writes. It is a file without a name (memfd) that other
// processes hold as well. When this process is killed, at any moment, the next one finds there the output that was read
// and is not in the log.
//
// If a process is killed inside of read(2), bytes may be in memory, but nobody knows how many. So the pump reads in two
// steps. splice(2) moves pages from the container's pipe to a second pipe, the relay. Only the pump writes to the
// relay, so the number of bytes in it is the number that was moved. The pump writes this number to the header, and
// reads from the relay. The bytes that are missing in the relay are those that were read.
//
// Only the pump's goroutine uses it, but for control.
type buffer struct {
	file, relay *os.File
	fd, relayFD int
	mem         []byte
	h           *header
	pos         int // the end of what has been read
	waits       int // bytes in the relay
	high        int // up to where memory may have been touched
	stream      int // its place in rotation.open
	// lost, if it is not nil, is what was left out of the log, up to the next mark.
	lost *lost
}

// header is the beginning of the memory. All zeros: nothing has been read.
type header struct {
	// read is the end of what has been read, from bufferBase on; the upper half is how much is being read behind
	// it just now, or 0.
	read uint64
	// done is up to where everything is in the log, from bufferBase on, times two; plus one if the last record
	// of it was of tag P.
	done uint64
	// move is not 0 while what is left goes to the front: its length, plus one. All of it is there by then.
	move uint64
	// writing is 1 while records are being written, with which done becomes next. The file had the size before,
	// and is longer by length when all of them are in it.
	writing, next  uint64
	before, length uint64
	dev, inode     uint64
	// lost is what was left out of the log since it last said so. With done it becomes nextLost where writing is more
	// than 1. An earlier version of the keeper leaves both as they are.
	lost, nextLost lost
	// touching is 1 while the process does anything with the log file. After it was killed, it may still be in a system
	// call on the file. An earlier version of the keeper leaves it as it is.
	touching uint64
}

// Values of header.writing.
const (
	writing     = 1
	writingLost = 2 // the same, and lost becomes nextLost
	skipping    = 3 // nothing is written to the file, and lost becomes nextLost
)

// lost is output that was left out of a log.
type lost struct {
	lines, bytes uint64
	// inside is 1 while the line that has begun is left out.
	inside uint64
}

const (
	bufferBase = 128
	// A line's beginning, and one read behind it.
	bufferSize = readSize + 4*MaxLine
	// idleBuffer is how many bytes of its memory an idle pump keeps: a page.
	idleBuffer = 4 << 10
)

func newBuffer() (_ *buffer, err error) {
	mem, err := unix.MemfdCreate("berth-log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	if err = unix.Ftruncate(mem, bufferSize); err == nil {
		// Nobody can take from under this process what it has mapped.
		_, err = unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	relay := -1
	if err == nil {
		relay, err = newRelay()
	}
	if err != nil {
		unix.Close(mem)
		return nil, fmt.Errorf("make a buffer for output: %w", err)
	}
	return openBuffer(mem, relay)
}

// newRelay is an empty pipe by a descriptor that has both its ends.
func newRelay() (int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", ends[0]), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	return fd, os.NewSyscallError("open both ends of a pipe", err)
}

// openBuffer takes over what newBuffer has made, in this process or in one before it.
func openBuffer(mem, relay int) (*buffer, error) {
	fail := func(err error) (*buffer, error) {
		unix.Close(mem)
		unix.Close(relay)
		return nil, fmt.Errorf("buffer for output: %w", err)
	}
	waits, err := unix.IoctlGetInt(relay, unix.TIOCINQ)
	if err != nil {
		return fail(os.NewSyscallError("ioctl(FIONREAD)", err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(mem, &st); err != nil {
		return fail(os.NewSyscallError("fstat", err))
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if have, err := unix.FcntlInt(uintptr(mem), unix.F_GET_SEALS, 0); err != nil || have&seals != seals ||
		st.Size != bufferSize {
		return fail(fmt.Errorf("%d bytes with seals %#x: %w", st.Size, have, unix.EINVAL))
	}
	bytes, err := unix.Mmap(mem, 0, bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(os.NewSyscallError("mmap", err))
	}
	b := &buffer{
		file: os.NewFile(uintptr(mem), "buffer"), relay: os.NewFile(uintptr(relay), "relay"), fd: mem, relayFD: relay,
		mem: bytes, h: (*header)(unsafe.Pointer(&bytes[0])), waits: waits, high: bufferSize,
	}
	if rest := b.h.move; rest > 0 {
		b.front(int(rest - 1))
	} else {
		b.pos = bufferBase + int(uint32(b.h.read))
		if reading := int(b.h.read >> 32); reading > 0 {
			b.pos += reading - waits
		}
	}
	if at := b.at(); at < bufferBase || at > b.pos || b.pos > bufferSize {
		pos := b.pos
		b.close()
		return nil, fmt.Errorf("buffer for output: written to %d, read to %d: %w", at, pos, unix.EINVAL)
	}
	b.reading(0)
	return b, nil
}

func (b *buffer) close() {
	_ = unix.Munmap(b.mem)
	b.mem, b.h = nil, nil
	b.file.Close()
	b.relay.Close()
}

// control calls fn with the descriptors, which stay open meanwhile.
func (b *buffer) control(fn func(role Role, fd int)) error {
	for role, file := range map[Role]*os.File{Memory: b.file, Relay: b.relay} {
		raw, err := file.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fn(role, int(fd)) }); err != nil {
			return err
		}
	}
	return nil
}

// at is where what is not in the log begins, and open says that the last record before it is of tag P.
func (b *buffer) at() int    { return bufferBase + int(b.h.done>>1) }
func (b *buffer) open() bool { return b.h.done&1 != 0 }

// rest is what has been read and is not in the log.
func (b *buffer) rest() []byte { return b.mem[b.at():b.pos] }

// mark is at and open as the header has them.
func mark(at int, open bool) uint64 {
	m := uint64(at-bufferBase) << 1
	if open {
		m |= 1
	}
	return m
}

// put says that all before the mark is in the log, or is given up.
func (b *buffer) put(mark uint64) {
	if b.h.done != mark {
		atomic.StoreUint64(&b.h.done, mark)
	}
	if b.h.writing != 0 {
		if b.h.writing != writing && mark == b.h.next {
			b.h.lost = b.h.nextLost
		}
		atomic.StoreUint64(&b.h.writing, 0)
	}
	b.touch(0)
}

// touch says that this process is about to do something with the log file (1), or does nothing with it (0).
func (b *buffer) touch(v uint64) {
	if b.h.touching != v {
		atomic.StoreUint64(&b.h.touching, v)
	}
}

// touched says whether the process that had the buffer was killed while it did something with the log file.
func (b *buffer) touched() bool {
	return b.h.writing == writing || b.h.writing == writingLost || b.h.touching != 0
}

// skip says that all before the mark is in the log or left out of it, where nothing of it is written.
func (b *buffer) skip(mark uint64) {
	if b.lost == nil || b.h.done == mark && b.h.lost == *b.lost {
		return
	}
	b.h.next, b.h.nextLost = mark, *b.lost
	atomic.StoreUint64(&b.h.writing, skipping)
	b.put(mark)
}

// recall has the pump continue with what was lost before.
func (b *buffer) recall() {
	if b.lost != nil {
		*b.lost = b.h.lost
	}
}

// begin says that records are about to be written which take all before the mark into a file.
func (b *buffer) begin(st *unix.Stat_t, length int, mark uint64) {
	h := b.h
	h.before, h.length, h.next, h.dev, h.inode = uint64(st.Size), uint64(length), mark, uint64(st.Dev), st.Ino
	if b.lost != nil {
		h.nextLost = *b.lost
		atomic.StoreUint64(&h.writing, writingLost)
		return
	}
	atomic.StoreUint64(&h.writing, writing)
}

// reading says up to where has been read, and how much is about to be.
func (b *buffer) reading(n int) {
	if v := uint64(b.pos-bufferBase) | uint64(n)<<32; b.h.read != v { // a page that nobody writes to takes no memory
		atomic.StoreUint64(&b.h.read, v)
	}
}

// front says that what is left is at the front now, where a copy of it lies already.
func (b *buffer) front(rest int) {
	b.pos = bufferBase + rest
	b.reading(0)
	atomic.StoreUint64(&b.h.done, b.h.done&1)
	atomic.StoreUint64(&b.h.move, 0)
}

// room moves what is left to the front when that is worth it.
func (b *buffer) room() {
	at := b.at()
	rest := b.pos - at
	switch {
	case rest == 0 && b.pos > bufferBase:
	case rest > 0 && b.pos > idleBuffer && at-bufferBase >= rest:
		copy(b.mem[bufferBase:], b.mem[at:b.pos])
	default:
		return
	}
	atomic.StoreUint64(&b.h.move, uint64(rest)+1)
	b.front(rest)
}

// trim gives memory back that a burst of output has taken.
func (b *buffer) trim() {
	if b.high <= idleBuffer || b.pos > idleBuffer {
		return
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(b.fd, punch, idleBuffer, bufferSize-idleBuffer); err == nil {
		b.high = idleBuffer
	}
}

// fill reads once, most bytes at most, without waiting, and gives what it has read: none at the end.
func (b *buffer) fill(fd, most int) ([]byte, error) {
	b.room()
	if b.waits == 0 {
		n, err := unix.Splice(fd, nil, b.relayFD, nil, most, unix.SPLICE_F_NONBLOCK)
		for err == unix.EINTR {
			n, err = unix.Splice(fd, nil, b.relayFD, nil, most, unix.SPLICE_F_NONBLOCK)
		}
		if n <= 0 || err != nil {
			return nil, err
		}
		b.waits = int(n)
	}
	from, n := b.pos, min(b.waits, bufferSize-b.pos)
	b.reading(n)
	for b.pos-from < n {
		got, err := unix.Read(b.relayFD, b.mem[b.pos:from+n])
		if err == unix.EINTR {
			continue
		}
		if got <= 0 || err != nil {
			b.reading(0)
			return nil, unix.ENOMEM // nothing else keeps a pipe with bytes from giving them
		}
		b.pos += got
		b.waits -= got
		b.reading(n - (b.pos - from))
	}
	b.high = max(b.high, b.pos)
	return b.mem[from:b.pos], nil
}
