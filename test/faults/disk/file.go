package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Name is that of the one file of the file system that Serve mounts.
const Name = "disk"

// Server shows a disk as a file.
type Server struct {
	disk *Disk
	dir  string
	fd   int
	done chan struct{}
}

// Serve mounts a file system at dir with the disk as its file Name. A kernel without FUSE is an error.
func Serve(d *Disk, dir string) (*Server, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("disk", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mount a file system at %s: %w", dir, err)
	}
	s := &Server{disk: d, dir: dir, fd: fd, done: make(chan struct{})}
	go s.serve()
	return s, nil
}

// closeWait is how long a loop device whose file system has been unmounted may keep the file open. Any process
// of the machine that has made itself a mount namespace meanwhile has a copy of the mount in it.
const closeWait = 2 * time.Second

// Close unmounts the file system, when nobody has the file open if that is soon. Who has it open gets errors
// from then on.
func (s *Server) Close() error {
	err := unmount(s.dir, closeWait)
	if err != nil {
		err = unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
	}
	<-s.done
	return errors.Join(err, unix.Close(s.fd))
}

// Requests of linux/fuse.h.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opInit        = 26
	opInterrupt   = 36
	opBatchForget = 42
)

// Sizes of its structures.
const (
	inHeader, outHeader  = 40, 16
	attrSize             = 88
	readSize, writeSize  = 40, 40
	rootInode, fileInode = 1, 2
	bigWrites            = 1 << 5 // FUSE_BIG_WRITES
	mostWritten          = 128 << 10
)

var order = binary.NativeEndian

// serve answers one request after the other, so that a flush covers all that was answered before it.
func (s *Server) serve() {
	defer close(s.done)
	in := make([]byte, 1<<20)
	for {
		n, err := unix.Read(s.fd, in)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil || n < inHeader {
			return // unmounted
		}
		op := order.Uint32(in[4:])
		if op == opForget || op == opBatchForget || op == opInterrupt {
			continue // these have no answer
		}
		body, errno := s.answer(op, order.Uint64(in[16:]), in[inHeader:n])
		out := make([]byte, outHeader, outHeader+len(body))
		out = append(out, body...)
		order.PutUint32(out, uint32(len(out)))
		order.PutUint32(out[4:], uint32(-int32(errno)))
		copy(out[8:], in[8:16])
		_, _ = unix.Write(s.fd, out)
	}
}

func (s *Server) answer(op uint32, inode uint64, in []byte) (body []byte, errno unix.Errno) {
	switch op {
	case opInit: // struct fuse_init_out of version 7.12
		body = make([]byte, 24)
		order.PutUint32(body, 7)
		order.PutUint32(body[4:], 12)
		order.PutUint32(body[8:], mostWritten) // read ahead
		order.PutUint32(body[12:], bigWrites)
		order.PutUint32(body[20:], mostWritten)
	case opLookup: // struct fuse_entry_out
		if string(in[:max(0, len(in)-1)]) != Name {
			return nil, unix.ENOENT
		}
		body = make([]byte, 40+attrSize)
		order.PutUint64(body, fileInode)
		s.attributes(body[40:], fileInode)
	case opGetattr, opSetattr: // struct fuse_attr_out
		body = make([]byte, 16+attrSize)
		s.attributes(body[16:], inode)
	case opOpen: // struct fuse_open_out
		body = make([]byte, 16)
	case opRead:
		if len(in) < readSize {
			return nil, unix.EINVAL
		}
		at, n := int64(order.Uint64(in[8:])), int64(order.Uint32(in[16:]))
		body = make([]byte, max(0, min(n, s.disk.size-at)))
		_, _ = s.disk.ReadAt(body, at)
	case opWrite: // struct fuse_write_out
		if len(in) < writeSize {
			return nil, unix.EINVAL
		}
		at, data := int64(order.Uint64(in[8:])), in[writeSize:]
		if at+int64(len(data)) > s.disk.size {
			return nil, unix.ENOSPC
		}
		_, _ = s.disk.WriteAt(data, at)
		body = make([]byte, 8)
		order.PutUint32(body, uint32(len(data)))
	case opFsync:
		s.disk.Flush()
	case opRelease, opFlush:
	default:
		return nil, unix.ENOSYS
	}
	return body, 0
}

// attributes writes a struct fuse_attr.
func (s *Server) attributes(attr []byte, inode uint64) {
	order.PutUint64(attr, inode)
	mode := uint32(unix.S_IFDIR | 0o700)
	if inode != rootInode {
		mode = unix.S_IFREG | 0o600
		order.PutUint64(attr[8:], uint64(s.disk.size))
		order.PutUint64(attr[16:], uint64(s.disk.size/sector))
	}
	order.PutUint32(attr[60:], mode)
	order.PutUint32(attr[64:], 1)
	order.PutUint32(attr[80:], pageSize)
}
