package node

import (
	"os/exec"
	"testing"
	"time"
)

// TestHalt: a process that never sleeps has stopped when Halt returns. Seen to fail without the wait.
func TestHalt(t *testing.T) {
	for range 50 {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := Halt(cmd.Process.Pid, 10*time.Second)
		p, readErr := readProcess(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil || readErr != nil || p.State != 'T' {
			t.Fatalf("%v is not stopped: %v, %v", p, err, readErr)
		}
	}
	if err := Halt(1<<22+1, time.Second); err == nil {
		t.Error("a process that does not exist was stopped")
	}
}
