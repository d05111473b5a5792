package cri

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"berth/internal/unixsocket"
)

// Listen opens the unix socket at address, a path with or without unix:// before it, with mode 0660, owned by root and
// the group gid (-1: root's). A socket that systemd passed for this path (LISTEN_FDS) is taken as it is. A file that is
// no socket is never removed, nor is a socket that somebody answers on; that error wraps errdefs.ErrAlreadyExists.
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
	l, err := unixsocket.Listen(path, gid)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func socketPath(address string) (string, error) {
	path := strings.TrimPrefix(address, "unix://")
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("address %q is not an absolute path of a unix socket: %w", address, errdefs.ErrInvalidArgument)
	}
	return filepath.Clean(path), nil
}

// TakePassed marks the sockets that systemd passed as close-on-exec: programs that are started before Listen would have
// them, too. The caller does not execute its own program again any more.
func TakePassed() { passed() }

// passed are the descriptors that systemd gave to this process. They are kept for the life of the process:
// those that are no socket of ours belong to somebody else here, and a collected os.File would close them.
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
	// Not f.Fd(), which would make the descriptor blocking for the connection's owner.
	raw.Control(func(fd uintptr) {
		if name, err := unix.Getsockname(int(fd)); err == nil {
			if sa, ok := name.(*unix.SockaddrUnix); ok {
				path = sa.Name
			}
		}
	})
	return path
}
