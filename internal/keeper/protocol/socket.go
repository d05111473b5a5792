package protocol

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Names of what is in a keeper's directory.
const (
	RPCSocket = "keeper.sock"
	FDsSocket = "fds.sock"
	LockFile  = "lock"
	// TurnFile is locked by a keeper for the moment in which it tries to get the lock.
	TurnFile = "turn"
	LogFile  = "keeper.log"
	// EscrowFile is locked, shared, by the escrow processes of the directory, until they have handed everything back.
	EscrowFile = "custodian"
)

// maxSocketPath is the longest path that fits sockaddr_un (unix(7)).
const maxSocketPath = 107

// within calls fn with a path of name in dir that fits a socket address, however long dir is.
func within(dir, name string, fn func(path string) error) error {
	path := filepath.Join(dir, name)
	if len(path) <= maxSocketPath {
		return fn(path)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return fn("/proc/self/fd/" + strconv.Itoa(fd) + "/" + name)
}

// Listen makes the socket name in dir, in place of what a dead keeper left there. Only the owner can connect.
func Listen(network, dir, name string) (*net.UnixListener, error) {
	var l *net.UnixListener
	err := within(dir, name, func(path string) error {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		var err error
		if l, err = net.ListenUnix(network, &net.UnixAddr{Net: network, Name: path}); err != nil {
			return err
		}
		// The socket file stays when the keeper ends: a client that connects between two keepers is refused at once,
		// and a keeper that is upgraded keeps the file.
		l.SetUnlinkOnClose(false)
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", filepath.Join(dir, name), err)
	}
	return l, nil
}

// Dial connects to the socket name in dir.
func Dial(network, dir, name string) (*net.UnixConn, error) {
	var c *net.UnixConn
	err := within(dir, name, func(path string) error {
		var err error
		c, err = net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
		return err
	})
	return c, err
}

// PeerAllowed says whether the process at the other end runs as the same user as this one, or as root.
func PeerAllowed(c *net.UnixConn) error {
	cred, err := peer(c)
	if err != nil {
		return err
	}
	if cred.Uid != 0 && cred.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("peer with uid %d may not talk to the keeper", cred.Uid)
	}
	return nil
}

// Peer is the process at the other end: for a client, the one that listens on the socket. It is 0 for a process in a
// PID namespace that this process cannot see.
func Peer(c *net.UnixConn) (pid int, err error) {
	cred, err := peer(c)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, os.NewSyscallError("SO_PEERCRED", credErr)
}
