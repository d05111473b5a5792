package server

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// receiveConsole takes a terminal's master from the socket that a runtime sent it to.
func receiveConsole(sock int) (int, error) {
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

// consoleSocket is a pair of which the one end is a starting process's, to send its terminal by.
type consoleSocket struct {
	ours   int
	theirs *os.File
}

func newConsoleSocket() (consoleSocket, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return consoleSocket{}, os.NewSyscallError("socketpair", err)
	}
	return consoleSocket{fds[0], os.NewFile(uintptr(fds[1]), "console")}, nil
}

func (c *consoleSocket) close() {
	unix.Close(c.ours)
	c.theirs.Close()
}

// take receives the terminal of a process that has started. Without one the process is killed; the caller reaps it.
func (c *consoleSocket) take(pid int) (console int, err error) {
	_ = unix.SetNonblock(c.ours, true) // it has been sent by now
	if console, err = receiveConsole(c.ours); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return console, err
}
