package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// maxSocketPath is the room in sockaddr_un, without its final NUL.
const maxSocketPath = 107

// Listen opens the unix socket at address, a path with or without unix:// before it, with mode 0660, owned by root and the
// group gid (-1: root's). A socket that systemd passed for this path (LISTEN_FDS) is taken as it is. A file that is no
// socket is never removed, nor is a socket that somebody answers on; that error wraps errdefs.ErrAlreadyExists.
//
// Close of the listener removes the socket, unless systemd owns it or another process has put its own in that place.
func Listen(address string, gid int) (net.Listener, error) {
	path, err := socketPath(address)
	if err != nil {
		return nil, err
	}
	if l, err := claim(passed(), path); l != nil || err != nil {
		return l, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	if err := checkStale(path); err != nil {
		return nil, err
	}
	return bind(path, gid)
}

func socketPath(address string) (string, error) {
	path := strings.TrimPrefix(address, "unix://")
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("address %q is not an absolute path of a unix socket: %w", address, errdefs.ErrInvalidArgument)
	}
	path = filepath.Clean(path)
	if len(temporary(path)) > maxSocketPath {
		return "", fmt.Errorf("address %q is too long for a unix socket (%d bytes at most): %w", address,
			maxSocketPath-len(temporary(path))+len(path), errdefs.ErrInvalidArgument)
	}
	return path, nil
}

// passed are the descriptors that systemd gave to this process. They are kept for the life of the process: those that are
// no socket of ours belong to somebody else here, and a collected os.File would close them.
var passed = sync.OnceValue(func() []*os.File { return activation.Files(false) })

// claim returns a listener on the passed socket that is bound to path, or nil.
func claim(files []*os.File, path string) (net.Listener, error) {
	for _, f := range files {
		if boundTo(f) != path {
			continue
		}
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("socket %s as systemd passed it: %w", path, err)
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		return l, nil
	}
	return nil, nil
}

// boundTo is the path of a unix socket; empty for anything else.
func boundTo(f *os.File) (path string) {
	raw, err := f.SyscallConn()
	if err != nil {
		return ""
	}
	// Not f.Fd(), which would make the descriptor blocking for whoever it belongs to.
	raw.Control(func(fd uintptr) {
		if name, err := unix.Getsockname(int(fd)); err == nil {
			if sa, ok := name.(*unix.SockaddrUnix); ok {
				path = sa.Name
			}
		}
	})
	return path
}

// checkStale returns nil if a new socket may take this path.
func checkStale(path string) error {
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
		conn.Close()
		return fmt.Errorf("somebody answers on %s already: %w", path, errdefs.ErrAlreadyExists)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil // its listener is gone
	}
	return fmt.Errorf("%s cannot be tried: %w", path, err) // a listener that does not accept lives too
}

// temporary is the name under which a socket gets its mode and owner before anybody can see it at its path.
func temporary(path string) string { return path + ".new" }

func bind(path string, gid int) (_ net.Listener, err error) {
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
	if err := os.Rename(tmp, path); err != nil {
		return nil, err
	}
	return &socket{UnixListener: l, path: path, own: own}, nil
}

// socket is a listener that was bound under another name than it is reached by.
type socket struct {
	*net.UnixListener
	path  string
	own   fs.FileInfo
	close sync.Once
}

func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

func (s *socket) Close() error {
	s.close.Do(func() {
		if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.own) {
			os.Remove(s.path)
		}
	})
	return s.UnixListener.Close()
}
