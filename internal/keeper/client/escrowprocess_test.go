package client_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// escrowProcesses are the PIDs of the escrow processes that the keepers of a directory have left behind.
func (n *node) escrowProcesses() (pids []int) {
	n.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, _ := os.ReadFile(path) // of one that ends, nothing
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(args) == 4 && args[1] == "--custodian" && args[3] == n.dir {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKeeperAndClientStoppedAtOnce: as with `systemctl stop berthd berth-keeper` and a systemd that keeps nothing.
func TestKeeperAndClientStoppedAtOnce(t *testing.T) {
	n := start(t)
	n.run(n.request("talks", "sh", "-c",
		"i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; usleep 500; done; exit 8"))
	// It fills its pipe and waits.
	n.run(n.request("floods", "sh", "-c", "until [ -e /tmp/flood ]; do usleep 1000; done; seq 1 200000; exit 6"))
	n.run(n.request("half", "sh", "-c", "printf begun; touch /tmp/begun; "+
		"until [ -e /tmp/flood ]; do usleep 1000; done; echo ' and ended'; exit 7"))
	cat := n.request("cat", "cat")
	cat.Stdin = true
	n.run(cat)
	tty := n.request("tty", "sh", "-c", "read x; echo got $x; exit 3")
	tty.Stdin, tty.Spec.Process.Terminal = true, true
	n.run(tty)
	n.until("output flows", func() bool { return strings.Count(n.output("stdout", n.logPath("talks")), "\n") > 50 })
	n.until("half a line is written", func() bool { _, err := os.Stat(n.root + "/tmp/begun"); return err == nil })

	for round := range 3 {
		pid := n.pid()
		n.client.Close()
		n.end(pid, syscall.SIGTERM)
		if got := n.escrowProcesses(); len(got) != 1 {
			t.Fatalf("escrow processes: %v", got)
		}
		// Nor does whoever reloads what is left of the unit end it. Seen to fail without the signal being caught.
		if err := syscall.Kill(n.escrowProcesses()[0], syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			if err := os.WriteFile(n.root+"/tmp/flood", nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(200 * time.Millisecond)
		n.client = n.connect()
		n.until("the escrow process has given everything back", func() bool { return len(n.escrowProcesses()) == 0 })
		at := strings.Count(n.output("stdout", n.logPath("talks")), "\n")
		n.until("output goes on", func() bool { return strings.Count(n.output("stdout", n.logPath("talks")), "\n") > at+50 })
	}
	if err := os.WriteFile(n.root+"/tmp/stop", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.endedOrphan("talks", 8)
	n.endedOrphan("floods", 6)
	n.endedOrphan("half", 7)
	for _, id := range []string{"talks", "floods"} {
		last := 0
		for line := range strings.Lines(n.output("stdout", n.logPath(id))) {
			if got := strings.TrimSpace(line); got != fmt.Sprint(last+1) {
				t.Fatalf("%s: %q follows %d", id, got, last)
			}
			last++
		}
		if id == "floods" && last != 200000 {
			t.Errorf("%d lines of 200000", last)
		}
	}
	if got := n.output("stdout", n.logPath("half")); got != "begun and ended\n" {
		t.Errorf("a line in two halves: %q", got)
	}
	for id, want := range map[string]string{"cat": "after\n", "tty": "got after"} {
		in, err := n.client.Input(id)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(in.File, "after\n")
		in.File.Close()
		if id == "cat" {
			if err := n.client.CloseStdin(n.ctx(), id); err != nil {
				t.Fatal(err)
			}
		}
		n.ended(id)
		if got := n.output("stdout", n.logPath(id)); !strings.Contains(got, want) {
			t.Errorf("%s wrote %q", id, got)
		}
	}
}

// TestAnEscrowProcessIsThereOnlyWhileItIsNeeded: a keeper without containers leaves none, a keeper that comes at once
// takes over without a gap, and an escrow process whose directory is removed ends.
func TestAnEscrowProcessIsThereOnlyWhileItIsNeeded(t *testing.T) {
	n := start(t)
	n.end(n.pid(), syscall.SIGTERM)
	if got := n.escrowProcesses(); len(got) > 0 {
		t.Errorf("escrow processes that hold nothing: %v", got)
	}
	// With a client that stays there are two to give things back.
	n.run(n.request("a", "sh", "-c", "while [ ! -e /tmp/stop ]; do echo x; usleep 1000; done; exit 4"))
	n.end(n.pid(), syscall.SIGTERM)
	n.until("the escrow process is gone", func() bool { n.pid(); return len(n.escrowProcesses()) == 0 })
	if err := os.WriteFile(n.root+"/tmp/stop", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.endedOrphan("a", 4)

	// Nobody comes, and the directory goes.
	other := &node{TB: t, program: n.program, dir: n.dir + "2", root: n.root, cgroup: n.cgroup + "-2"}
	var err error
	cfg := other.config()
	if other.client, err = keeper.Connect(n.ctx(), cfg); err != nil {
		t.Fatal(err)
	}
	other.run(other.request("b", "sleep", "1000"))
	st, err := other.client.Status(n.ctx(), "b")
	if err != nil {
		t.Fatal(err)
	}
	pid := other.pid()
	other.client.Close()
	other.end(pid, syscall.SIGTERM)
	if got := other.escrowProcesses(); len(got) != 1 {
		t.Errorf("escrow processes: %v", got)
	}
	if err := unix.Kill(st.PID, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(other.dir); err != nil {
		t.Fatal(err)
	}
	other.until("the escrow process is gone", func() bool { return len(other.escrowProcesses()) == 0 })
	left, _ := filepath.Glob("/sys/fs/cgroup/*" + other.cgroup)
	left2, _ := filepath.Glob("/sys/fs/cgroup" + other.cgroup)
	for _, dir := range append(left, left2...) {
		removeCgroup(dir)
	}
}
