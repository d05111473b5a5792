// Package testhost simulates a host for network tests: it makes network namespaces for the host, for pods and for the
// outside, with servers and clients in them.
package testhost

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/namespace"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const insideEnv = "BERTH_TEST_INSIDE"

// Main is for TestMain. It runs the tests again in a network and a mount namespace of their own: a host that nothing
// else is on, and that the kernel clears away.
func Main(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		lo, err := netlink.LinkByName("lo")
		must(err)
		must(netlink.LinkSetUp(lo))
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Println("skipped: networks need root")
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Check ends the test on an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for what normally comes at once.
const patience = 3 * time.Minute

// Eventually waits until there is nothing wrong any more.
func Eventually(t testing.TB, what string, wrong func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := wrong()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("not in %v: %s: %v", patience, what, err)
			return
		}
	}
}

// Logger logs where the tests are verbose.
func Logger() *slog.Logger {
	out := io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	return slog.New(slog.NewTextHandler(out, nil))
}

// Namespace pins a new network namespace for the time of the test.
func Namespace(t testing.TB) (path string) {
	t.Helper()
	set := namespace.Set{Dir: t.TempDir() + "/ns"}
	Check(t, set.Create(namespace.Options{Kinds: []namespace.Kind{namespace.Network}}))
	t.Cleanup(func() { set.Remove() })
	return set.Path(namespace.Network)
}

// Unpin lets a namespace go, and leaves the file that it was pinned at, as a reboot does.
func Unpin(path string) { unix.Unmount(path, unix.MNT_DETACH) }

// In runs f in a pinned namespace, or on the host for an empty path.
func In(t testing.TB, path string, f func() error) {
	t.Helper()
	Check(t, namespace.Do(path, f))
}

func addAddress(l netlink.Link, prefix string) error {
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrAdd(l, a)
}

// Serve answers each connection, or packet, in a namespace with who the server is and whom it sees.
func Serve(t testing.TB, path, network, addr, name string) {
	t.Helper()
	In(t, path, func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			go func() {
				buf := make([]byte, 64)
				for {
					_, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					c.WriteTo([]byte(name+" "+from.(*net.UDPAddr).IP.String()), from)
				}
			}()
			return nil
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, name+" "+c.RemoteAddr().(*net.TCPAddr).IP.String())
				c.Close()
			}
		}()
		return nil
	})
}

// dialTimeout is short, since some ask where nobody answers.
const dialTimeout = 2500 * time.Millisecond

// Ask returns what a server says to a client in a namespace.
func Ask(t testing.TB, path, network, addr string) (name, seen string, err error) {
	t.Helper()
	var c net.Conn
	d := net.Dialer{Timeout: dialTimeout}
	run := func() error { c, err = d.Dial(network, addr); return nil }
	In(t, path, run)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(dialTimeout))
	if strings.HasPrefix(network, "udp") {
		c.Write([]byte("hello"))
	}
	buf := make([]byte, 128)
	n, err := c.Read(buf)
	if err != nil {
		return "", "", err
	}
	name, seen, _ = strings.Cut(string(buf[:n]), " ")
	return name, seen, nil
}

// Outside makes a network that the host's default routes lead to, and returns its namespace. The host is
// 198.51.100.1 and 2001:db8:51::1 there, the other end .2 and ::2.
func Outside(t testing.TB) string {
	t.Helper()
	path := Namespace(t)
	ns, err := os.Open(path)
	Check(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "uplink", 1400
	Check(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "out", PeerMTU: 1400, PeerNamespace: netlink.NsFd(ns.Fd()),
	}))
	setup := func(link, v4, v6 string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		for _, a := range []string{v4, v6} {
			if err := addAddress(l, a); err != nil {
				return err
			}
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_dad", []byte("0"), 0); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}
	Check(t, setup("uplink", "198.51.100.1/24", "2001:db8:51::1/64"))
	In(t, path, func() error { return setup("out", "198.51.100.2/24", "2001:db8:51::2/64") })
	for _, gw := range []string{"198.51.100.2", "2001:db8:51::2"} {
		Check(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}))
	}
	t.Cleanup(func() { netlink.LinkDel(&netlink.Veth{LinkAttrs: attrs}) })
	for range 50 { // until the new link carries IPv6
		if _, _, err := Ask(t, "", "tcp", "[2001:db8:51::2]:1"); errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	return path
}
