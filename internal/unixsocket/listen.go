package unixsocket

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// maxPath is the room in sockaddr_un, without its final NUL.
const maxPath = 107

// Listen opens the unix socket at an absolute path with mode 0660, owned by root and the group gid (-1:
// root's). A file that is no socket is never removed, nor is a socket that somebody answers on; that error wraps
// errdefs.ErrAlreadyExists. Who watches the directory sees the path appear, ready to be connected to.
//
// Close of the listener removes the socket, unless another process has put its own in that place.
func Listen(path string, gid int) (*Listener, error) {
	if room := maxPath - len(temporary("")); len(path) > room {
		return nil, fmt.Errorf("address %q is too long for a unix socket (%d bytes at most): %w", path, room,
			errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	if err := CheckStale(path); err != nil {
		return nil, err
	}
	return bind(path, gid)
}

// CheckStale returns nil if a new socket may take this path. That somebody answers on it is errdefs.ErrAlreadyExists.
func CheckStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is no socket: %w", path, errdefs.ErrAlreadyExists)
	}
	conn, err := net.DialTimeout("unix", path, 2*time.Second)
	if err == nil {
		defer conn.Close()
		if ofTheDead(conn.(*net.UnixConn)) {
			return nil
		}
		return fmt.Errorf("somebody answers on %s already: %w", path, errdefs.ErrAlreadyExists)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil // its listener is gone
	}
	return fmt.Errorf("%s cannot be tried: %w", path, err) // a listener that does not accept lives too
}

// ofTheDead tells whether the process that listens at the other end has ended. A child that it forked as it was killed
// has the socket until it executes its own program or is killed too, and the kernel lets clients connect as long.
func ofTheDead(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred // who called listen
	if err := raw.Control(func(fd uintptr) {
		peer, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peer == nil || peer.Pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", peer.Pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// The name before the state may hold anything. A zombie has yet to be reaped.
	state := stat[bytes.LastIndexByte(stat, ')')+1:]
	return bytes.HasPrefix(state, []byte(" Z")) || bytes.HasPrefix(state, []byte(" X"))
}

// temporary is the name under which a socket gets its mode and owner before anybody can see it at its path.
func temporary(path string) string { return path + ".new" }

func bind(path string, gid int) (_ *Listener, err error) {
	tmp := temporary(path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer func() {
		if err != nil {
			l.Close()
			os.Remove(tmp)
		}
	}()
	if err := os.Chmod(tmp, 0o660); err != nil {
		return nil, err
	}
	if gid >= 0 {
		if err := os.Chown(tmp, -1, gid); err != nil {
			return nil, fmt.Errorf("give the socket to group %d: %w", gid, err)
		}
	}
	own, err := os.Lstat(tmp)
	if err != nil {
		return nil, err
	}
	// A link, not a rename: to some who wait for the socket, only a file that is created is one that appears.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Link(tmp, path); err != nil {
		return nil, err
	}
	if err := os.Remove(tmp); err != nil {
		return nil, err
	}
	return &Listener{UnixListener: l, path: path, own: own}, nil
}

// Listener was bound under another name than it is reached by.
type Listener struct {
	*net.UnixListener
	path  string
	own   fs.FileInfo
	close sync.Once
	ended atomic.Bool
}

// Addr is the path that the socket is reached by.
func (s *Listener) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Stands tells whether the socket at the listener's path is still its own.
func (s *Listener) Stands() bool {
	now, err := os.Lstat(s.path)
	return err == nil && os.SameFile(now, s.own)
}

// Closed tells whether Close was called.
func (s *Listener) Closed() bool { return s.ended.Load() }

// Close ends the listener and removes its socket.
func (s *Listener) Close() error {
	s.close.Do(func() {
		s.ended.Store(true)
		if s.Stands() {
			os.Remove(s.path)
		}
	})
	return s.UnixListener.Close()
}
