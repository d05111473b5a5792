package cri

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"berth/internal/audit"
)

// withPeer returns a call's context with who calls.
func withPeer(ctx context.Context) context.Context {
	if caller, ok := peer.FromContext(ctx); ok {
		if info, ok := caller.AuthInfo.(connection); ok {
			return audit.WithPeer(ctx, &info.peer)
		}
	}
	return ctx
}

// connection is what gRPC knows of a connection.
type connection struct {
	credentials.CommonAuthInfo
	peer audit.Peer
}

func (connection) AuthType() string { return "unix" }

// unixCredentials are those of a gRPC server on a unix socket: they ask the kernel who has connected, and refuse
// nobody, since the socket's mode does that.
type unixCredentials struct{}

func (unixCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := connection{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return conn, nil, nil // of systemd, and no unix socket
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var cred *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, nil, err
	}
	if asked != nil {
		return nil, nil, os.NewSyscallError("SO_PEERCRED", asked)
	}
	info.peer = audit.Peer{PID: uint32(cred.Pid), UID: cred.Uid, GID: cred.Gid}
	info.peer.Program, _ = os.Readlink(filepath.Join("/proc", fmt.Sprint(cred.Pid), "exe")) // it may have ended
	return conn, info, nil
}

func (unixCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	return conn, nil, nil
}

func (unixCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (c unixCredentials) Clone() credentials.TransportCredentials { return c }

func (unixCredentials) OverrideServerName(string) error { return nil }
