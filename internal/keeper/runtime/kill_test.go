package runtime

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth/internal/keeper/procfs"
)

// TestAllThatMatchIsKilled, also what a process starts as it is found: the shell starts another one each time that one
// has ended. Seen to fail where processes are looked for once.
func TestAllThatMatchIsKilled(t *testing.T) {
	const mark = "berth-kill-matching"
	loop := exec.Command("sh", "-c", "while :; do sh -c 'read end' "+mark+"; done", mark)
	stdin, err := loop.StdinPipe() // which every read waits for
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- loop.Wait() }()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	match := func(pid int) bool { return strings.Contains(procfs.CommandLine(pid), mark) }
	ended, err := KillMatching(10*time.Second, match)
	if !ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	select {
	case <-waited:
	case <-time.After(10 * time.Second):
		t.Error("the loop runs on")
	}
	pids, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if match(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if args := procfs.CommandLine(other.Process.Pid); !strings.HasPrefix(args, "sleep") {
		t.Errorf("another process is %q", args)
	}
}
