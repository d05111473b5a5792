package node

import (
	"fmt"
	"net"
	"testing"
)

// TestAPortIsGivenOnce, to this process and to others, and connections do not get it.
func TestAPortIsGivenOnce(t *testing.T) {
	given := map[int]bool{}
	for range 50 {
		port, err := Port()
		if err != nil {
			t.Fatal(err)
		}
		if first := ephemeral(); given[port] || port >= first && first >= 20000 {
			t.Errorf("port %d: given before: %v; connections get those from %d on", port, given[port], first)
		}
		given[port] = true
		if l, err := net.Listen("unix", fmt.Sprintf("@berth-test-port-%d", port)); err == nil {
			l.Close()
			t.Errorf("port %d is not locked", port)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
