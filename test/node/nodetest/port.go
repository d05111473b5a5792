package nodetest

import (
	"net"
	"strconv"
	"testing"

	"berth/test/node"
)

// Port is node.Port.
func Port(t testing.TB) int {
	t.Helper()
	port, err := node.Port()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FreeAddress is one of loopback, with a Port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Port(t)))
}
