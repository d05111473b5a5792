package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// inside runs a function on a thread that is in the host's network namespace. Sockets that it makes belong there.
func (h *Host) inside(do func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and no other one runs in that namespace.
		runtime.LockOSThread()
		result <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", h.PID))
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the network of %s: %w", h.Name, err)
			}
			return do()
		}()
	}()
	return <-result
}

// Dial connects to an address as a process in the host would.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := h.inside(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens on an address of the host.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	var listener net.Listener
	err := h.inside(func() (err error) {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// Forward accepts connections and joins each with one that dial makes, until the listener is closed.
func Forward(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := dial()
			if err != nil {
				return
			}
			defer server.Close()
			var both sync.WaitGroup
			copyHalf := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				if half, ok := to.(interface{ CloseWrite() error }); ok {
					_ = half.CloseWrite()
				}
			}
			both.Go(func() { copyHalf(server, client) })
			both.Go(func() { copyHalf(client, server) })
			both.Wait()
		}()
	}
}

// Switch makes the host a switch with this address: other hosts can be joined to it.
func (h *Host) Switch(address string) error {
	return h.ip("link add cluster type bridge", "addr add "+address+" dev cluster", "link set cluster up")
}

// Join joins a host to the switch, as its eth0 with this address.
func (h *Host) Join(other *Host, address string) error {
	port := "to-" + other.Name
	port = port[:min(len(port), 15)]
	if err := h.ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", port, other.PID),
		"link set "+port+" master cluster up"); err != nil {
		return err
	}
	return other.ip("addr add "+address+" dev eth0", "link set eth0 up")
}

// Route sends what is for a range to another host.
func (h *Host) Route(to, via string) error { return h.ip("route replace " + to + " via " + via) }

// ip runs ip of the machine in the host's network.
func (h *Host) ip(commands ...string) error {
	for _, command := range commands {
		args := append([]string{"--net=/proc/" + strconv.Itoa(h.PID) + "/ns/net", "ip"}, strings.Fields(command)...)
		if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: ip %s: %w: %s", h.Name, command, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
