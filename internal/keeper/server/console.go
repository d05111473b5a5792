package server

import (
	"errors"
	"fmt"

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
