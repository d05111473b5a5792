package connection

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
)

// PeerPID is the process of root's that listens on a socket, as this process sees it; 0: there is none, or it is not
// known. Another user's is none, since root may execute its program.
func PeerPID(ctx context.Context, socket string) int {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	var peer *unix.Ucred
	if raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return 0
	}
	if peer.Uid != 0 {
		return 0
	}
	return int(peer.Pid)
}
