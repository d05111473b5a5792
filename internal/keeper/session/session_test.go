package session

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// TestAPacketThatCannotBeSent: it has an error of its own, and those after it arrive. Seen to fail where its error ends
// the session.
func TestAPacketThatCannotBeSent(t *testing.T) {
	for name, queued := range map[string]bool{"at once": false, "from the queue": true} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pair(t)
			s := New(&protocol.Packet{Session: "berthd"}, ours)
			defer s.Close()
			if !queued {
				s.Begin()
			}
			large, _ := json.Marshal(strings.Repeat("x", 70_000))
			sent := s.Push(&protocol.Packet{Kind: protocol.Keep, ID: "large", Record: large})
			next := s.Push(&protocol.Packet{Kind: protocol.Synced})
			if queued {
				s.Begin()
			}
			if err := <-sent; !errors.Is(err, protocol.ErrPacket) {
				t.Errorf("the large one: %v", err)
			}
			if err := <-next; err != nil {
				t.Errorf("the next one: %v", err)
			}
			theirs.SetDeadline(time.Now().Add(time.Minute))
			if p, err := theirs.Receive(); err != nil || p.Kind != protocol.Synced {
				t.Errorf("received %+v, %v", p, err)
			}
		})
	}
}

// pair is a connection with both ends.
func pair(t *testing.T) (a, b *protocol.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*protocol.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = protocol.NewConn(c.(*net.UnixConn))
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}
