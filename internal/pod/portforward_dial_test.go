package pod

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// ownNetwork is the network namespace of the test, as if it were a pod's.
const ownNetwork = "/proc/self/ns/net"

func TestALoopbackIsReachedInBothFamilies(t *testing.T) {
	asroot.Need(t, "setns")
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			l, err := net.Listen("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = io.WriteString(conn, "hello")
					conn.Close()
				}
			}()
			port := uint16(l.Addr().(*net.TCPAddr).Port)
			conn, err := dialLoopback(t.Context(), ownNetwork, port)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			l.Close()
			if _, err := dialLoopback(t.Context(), ownNetwork, port); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("nobody listens: %v", err)
			}
		})
	}
}

// countOwn counts what the test has of a kind: "task" are its threads, "fd" its descriptors.
func countOwn(t *testing.T, kind string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A program that accepts no connections: those that wait for it hold no threads, and end with their clients. Seen to
// fail where they are made on a thread in the namespace.
func TestConnectionsThatWaitHoldNoThreads(t *testing.T) {
	asroot.Need(t, "setns")
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(bound.(*unix.SockaddrInet4).Port)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	threads, files := countOwn(t, "task"), countOwn(t, "fd")
	var waiting sync.WaitGroup
	const clients = 200
	for range clients {
		waiting.Go(func() {
			if conn, err := dialLoopback(ctx, ownNetwork, port); err == nil { // the kernel accepts the first
				<-ctx.Done()
				conn.Close()
			}
		})
	}
	eventually := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(dialTimeout / 2); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("never: %s", what)
				return
			}
		}
	}
	eventually("all connect", func() bool { return countOwn(t, "fd") > files+clients*3/4 })
	eventually("the threads have ended", func() bool { return countOwn(t, "task") < threads+clients/2 })
	cancel()
	waiting.Wait()
}
