// Package mutetest mounts a file system that stops answering, for tests. It behaves like FUSE without its daemon or NFS
// without its server.
package mutetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// FS is a file system in which every name is an empty directory.
type FS struct {
	Dir  string // where it is mounted
	fd   int
	mute atomic.Bool
	left atomic.Bool // a request has no answer
	once sync.Once
	// begun is closed when the kernel's first request has its answer. Before that, who asks for something can be killed.
	begun chan struct{}
}

// Mount mounts one that answers. The test ends it.
func Mount(t testing.TB, dir string) *FS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this kernel has no FUSE: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("mute", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Fatal(err)
	}
	f := &FS{Dir: dir, fd: fd, begun: make(chan struct{})}
	t.Cleanup(f.End)
	go f.serve()
	<-f.begun
	return f
}

// Mute stops the answers. Who asks waits until End, and cannot be killed.
func (f *FS) Mute() { f.mute.Store(true) }

// Waits tells whether somebody waits for an answer.
func (f *FS) Waits() bool { return f.left.Load() }

// End aborts all that waits, and unmounts.
func (f *FS) End() {
	f.once.Do(func() {
		_ = unix.Unmount(f.Dir, unix.MNT_FORCE|unix.MNT_DETACH)
		unix.Close(f.fd)
	})
}

// Requests of linux/fuse.h that are answered.
const (
	lookup  = 1
	getattr = 3
	hello   = 26
)

const headerSize, attrSize = 16, 88

func (f *FS) serve() {
	in := make([]byte, 1<<20)
	order := binary.NativeEndian
	for {
		n, err := unix.Read(f.fd, in)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return
		case n < 40:
			continue
		case f.mute.Load():
			f.left.Store(true)
			continue
		}
		var body []byte
		errno := unix.Errno(0)
		switch order.Uint32(in[4:]) {
		case hello: // struct fuse_init_out of version 7.12
			body = make([]byte, 24)
			order.PutUint32(body, 7)
			order.PutUint32(body[4:], 12)
			order.PutUint32(body[20:], 4096)
		case lookup: // struct fuse_entry_out, to be asked for again each time
			body = make([]byte, 40+attrSize)
			order.PutUint64(body, 2)
			directory(body[40:], 2)
		case getattr:
			body = make([]byte, 16+attrSize)
			directory(body[16:], order.Uint64(in[16:]))
		default:
			errno = unix.ENOSYS
		}
		out := make([]byte, headerSize, headerSize+len(body))
		out = append(out, body...)
		order.PutUint32(out, uint32(len(out)))
		order.PutUint32(out[4:], uint32(-int32(errno)))
		copy(out[8:], in[8:16])
		_, _ = unix.Write(f.fd, out)
		if order.Uint32(in[4:]) == hello {
			close(f.begun)
		}
	}
}

// directory is struct fuse_attr.
func directory(attr []byte, inode uint64) {
	order := binary.NativeEndian
	order.PutUint64(attr, inode)
	order.PutUint32(attr[60:], unix.S_IFDIR|0o755)
	order.PutUint32(attr[64:], 2)
}
