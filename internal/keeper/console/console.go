// Package console receives the master of a terminal from the process that made the terminal. OCI runtimes, libcontainer
// and the stage send it over a UNIX socket.
package console

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Receive takes a terminal's master from the socket that a runtime sent it to. It takes one descriptor. Processes of
// the container may be able to send, too: a message with more of them, or that the kernel has cut, is refused, and all
// that has come with it is closed.
func Receive(sock int) (int, error) {
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4))
	var n, flags int
	for err := error(unix.EINTR); err != nil; {
		if _, n, flags, _, err = unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC); err != nil && err != unix.EINTR {
			return -1, fmt.Errorf("receive terminal: %w", err)
		}
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, fmt.Errorf("receive terminal: %w", err)
	}
	var fds []int
	for i := range msgs {
		if more, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, more...)
		}
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("the runtime's message was cut: it has more than a terminal, or this process has no descriptor " +
			"left (RLIMIT_NOFILE)")
	case len(fds) == 0:
		err = errors.New("runtime sent no terminal")
	case len(fds) > 1:
		err = fmt.Errorf("runtime sent %d descriptors in place of a terminal", len(fds))
	default:
		return fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return -1, err
}

// Socket is a pair of sockets of which the one end is a starting process's, to send its terminal by. The zero Socket
// stands for a process without a terminal.
type Socket struct {
	ours   int
	Theirs *os.File // the end of the process that starts; nil without a terminal
}

// NewSocket makes the pair for a process that is to have a terminal, and returns the zero Socket for one that is not.
// The caller closes it.
func NewSocket(terminal bool) (Socket, error) {
	if !terminal {
		return Socket{}, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Socket{}, os.NewSyscallError("socketpair", err)
	}
	return Socket{fds[0], os.NewFile(uintptr(fds[1]), "console")}, nil
}

// Close closes both ends. A terminal that was sent and not taken is closed with them.
func (c *Socket) Close() {
	if c.Theirs != nil {
		unix.Close(c.ours)
		c.Theirs.Close()
	}
}

// Take receives the terminal of a process that has started; -1: it is to have none. A process that has sent none is
// killed, and the caller reaps it.
func (c *Socket) Take(pid int) (console int, err error) {
	if c.Theirs == nil {
		return -1, nil
	}
	_ = unix.SetNonblock(c.ours, true) // it has been sent by now
	if console, err = Receive(c.ours); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return console, err
}
