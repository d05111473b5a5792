package client

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// pair is a socket of the keeper's kind whose other end is closed, as a keeper that was killed leaves it.
func pair(t *testing.T, kind int) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[1])
	file := os.NewFile(uintptr(fds[0]), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// TestAKeeperThatIsKilledDuringAConnect: the connection is over, and its client lives. Seen to fail, by a panic, where
// the end of a connection does not wait until it is made.
func TestAKeeperThatIsKilledDuringAConnect(t *testing.T) {
	for range 5000 {
		c := newConnection(pair(t, unix.SOCK_STREAM), protocol.NewConn(pair(t, unix.SOCK_SEQPACKET)))
		<-c.closed
		c.fds.Close()
	}
}
