package client

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
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

// TestATerminalThatFindsNoRoom: who waits for it is told. An exec waited for ever for a terminal that the kernel had
// cut off the message.
func TestATerminalThatFindsNoRoom(t *testing.T) {
	c := &Client{consoles: map[string]*os.File{}, awaited: map[string]int{}, arrived: make(chan struct{})}
	defer c.awaitConsole("c/e")()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c.takeConsole(&protocol.Packet{Kind: protocol.Console, ID: "c/e", Cut: true})
	if f, err := c.console(ctx, "c/e"); !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v, %v", f, err)
	}
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

// TestExecsThatNeverArriveAreForgotten: a probe whose time is over before its program begins never gets into escrow.
// An exec whose end is told first may be on its way for a while, and is not kept when it arrives. Seen to fail where
// each is remembered until it arrives: 3600 after an hour.
func TestExecsThatNeverArriveAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e escrow
		e.init()
		for i := range 3600 {
			e.taken(fmt.Sprint("c/", i))
			time.Sleep(time.Second)
		}
		if n := len(e.told.now) + len(e.told.before); n > 130 {
			t.Errorf("%d are remembered", n)
		}
		for _, late := range []string{"c/3541", "c/3599"} {
			e.keep(&protocol.Packet{Kind: protocol.Keep, ID: late})
			if e.items[late] != nil || e.told.take(late) {
				t.Errorf("%s, which was told %v ago, is kept", late, toldFor)
			}
		}
		e.keep(&protocol.Packet{Kind: protocol.Keep, ID: "c/new"})
		if e.items["c/new"] == nil {
			t.Error("one that was not told is not kept")
		}
	})
}
