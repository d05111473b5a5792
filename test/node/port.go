package node

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// ports are the locks of the ports that this process has been given. An abstract socket ends with its process, so no
// file is left of one that was killed.
var ports struct {
	sync.Mutex
	locks []io.Closer
}

// Port is a port of this machine at which nobody listens, for a program that has to be told one. No other test is
// given it while this process runs. It lies below the ports that the kernel gives to connections: one of those may be
// taken at any moment.
func Port() (int, error) {
	const low = 10000
	high := ephemeral()
	if high < 2*low {
		high = 65536
	}
	for range 1000 {
		port := low + rand.IntN(high-low)
		lock, err := net.Listen("unix", fmt.Sprintf("@berth-test-port-%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reserve a port: %w", err)
		}
		if !free(port) {
			lock.Close()
			continue
		}
		ports.Lock()
		ports.locks = append(ports.locks, lock)
		ports.Unlock()
		return port, nil
	}
	return 0, fmt.Errorf("no port is free between %d and %d", low, high)
}

// free says whether nobody has a port at any address.
func free(port int) bool {
	address := ":" + strconv.Itoa(port)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer l.Close()
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// ephemeral is the first of the ports that the kernel gives to connections, or 0.
func ephemeral() (first int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	_, _ = fmt.Sscan(string(text), &first)
	return first
}
