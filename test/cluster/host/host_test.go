package host

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a host of namespaces needs root")
	}
	dir := t.TempDir()
	h, err := Start(t.Context(), Options{
		Name: fmt.Sprintf("b%08x", rand.Uint32()), Dir: dir,
		Binds:   []Bind{{From: filepath.Join(dir, "data"), At: "/var/lib/host-test"}},
		Files:   map[string]string{"/etc/host-test": "it's mine\n"},
		Sysctls: map[string]string{"vm/overcommit_memory": "7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.End(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func run(t *testing.T, h *Host, script string) string {
	t.Helper()
	out, err := h.Run(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestAHostIsAMachineOfItsOwn is what programs in a host rely on.
func TestAHostIsAMachineOfItsOwn(t *testing.T) {
	h := start(t)
	for script, want := range map[string]string{
		"hostname":                                 h.Name,
		"cat /etc/host-test":                       "it's mine",
		"cat /proc/sys/vm/overcommit_memory":       "7",
		"ls /sys/class/net | xargs":                "lo",
		"cut -d: -f3 /proc/self/cgroup | sort -u":  "/",
		"tr '\\0' '\\n' < /proc/1/cmdline | wc -l": "1",
		"echo kept > /var/lib/host-test/file; echo gone > /etc/host-test-2; echo ok":     "ok",
		"for d in /sys/fs/cgroup/*/; do ls $d | grep -c ^" + h.Name + "; done | sort -u": "0",
	} {
		if got := run(t, h, script); got != want {
			t.Errorf("%s: %q, not %q", script, got, want)
		}
	}
	if _, err := os.Stat("/etc/host-test-2"); err == nil {
		t.Error("a file that the host wrote is on the machine")
	}
	if data, err := os.ReadFile(filepath.Join(h.dir, "data", "file")); err != nil || string(data) != "kept\n" {
		t.Errorf("what the host wrote into a bind is %q (%v)", data, err)
	}
}

// TestNothingOutlivesAHost has daemons of a host end with it, and its cgroups go.
func TestNothingOutlivesAHost(t *testing.T) {
	h := start(t)
	s, err := h.Service("sleeper", "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	run(t, h, "for d in /sys/fs/cgroup/*/; do mkdir $d/below; done; setsid sleep 1000 >/dev/null 2>&1 & echo started")
	if err := h.End(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.exited:
	case <-time.After(10 * time.Second):
		t.Error("a service outlives its host")
	}
	for _, dir := range h.cgroups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is there", dir)
		}
	}
}

// TestHostsReachEachOther has two on a switch, and the machine reach in.
func TestHostsReachEachOther(t *testing.T) {
	hub, leaf := start(t), start(t)
	if err := hub.Switch("10.9.9.1/24"); err != nil {
		t.Fatal(err)
	}
	if err := hub.Join(leaf, "10.9.9.2/24"); err != nil {
		t.Fatal(err)
	}
	listener, err := leaf.Listen("tcp", "10.9.9.2:99")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go Forward(listener, func() (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			_, _ = io.WriteString(server, "hello")
			_ = server.Close()
		}()
		return client, nil
	})
	conn, err := hub.Dial(context.Background(), "tcp", "10.9.9.2:99")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if data, err := io.ReadAll(conn); err != nil || string(data) != "hello" {
		t.Errorf("%q (%v)", data, err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range interfaces {
		if one.Name == "cluster" || one.Name == "to-"+leaf.Name {
			t.Errorf("the machine has the hosts' interface %s", one.Name)
		}
	}
}
