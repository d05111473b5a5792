// Package console receives the master of a terminal from the process that has made it. OCI runtimes, libcontainer and
// the stage send it by a UNIX socket.
package console

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Receive takes a terminal's master from the socket that a runtime sent it to.
func Receive(sock int) (int, error) {
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("receive terminal: %w", err)
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			return -1, fmt.Errorf("receive terminal: %w", err)
		}
		for i := range msgs {
			if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil && len(fds) > 0 {
				return fds[0], nil
			}
		}
		return -1, errors.New("runtime sent no terminal")
	}
}

// Socket is a pair of which the one end is a starting process's, to send its terminal by.
type Socket struct {
	ours   int
	Theirs *os.File // the end of the process that starts; nil in the zero Socket, which stands for no terminal
}

// NewSocket makes a pair of sockets. The caller closes it.
func NewSocket() (Socket, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Socket{}, os.NewSyscallError("socketpair", err)
	}
	return Socket{fds[0], os.NewFile(uintptr(fds[1]), "console")}, nil
}

// Close closes both ends.
func (c *Socket) Close() {
	unix.Close(c.ours)
	c.Theirs.Close()
}

// Take receives the terminal of a process that has started. Without one the process is killed; the caller reaps it.
func (c *Socket) Take(pid int) (console int, err error) {
	_ = unix.SetNonblock(c.ours, true) // it has been sent by now
	if console, err = Receive(c.ours); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return console, err
}
