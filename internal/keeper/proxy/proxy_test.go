package proxy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/null"
)

// TestAWaitThatIsKilledOftenIsBegunAgain: the runtime's wait is a process like others, and somebody may kill it again
// and again in the months that a container runs. One that fails at once is given up. Seen to fail where all failures
// counted.
func TestAWaitThatIsKilledOftenIsBegunAgain(t *testing.T) {
	for what, c := range map[string]struct {
		script string // of the runtime's wait; n is which call of it this is
		code   int
	}{
		"it fails with a pause": {"[ $n = 12 ] && sleep 3.1; [ $n = 24 ] && echo '{\"id\":\"c\",\"exitStatus\":7}'", 7},
		"it fails without end":  {"false", Unknown},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			runtime := filepath.Join(dir, "runtime")
			script := fmt.Sprintf("#!/bin/sh\ncase $1 in wait)\necho >>%[1]s/calls; n=$(wc -l <%[1]s/calls)\n%s;;\nesac\n", dir,
				c.script)
			if err := os.WriteFile(runtime, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			sandbox := exec.Command("sleep", "1000")
			if err := sandbox.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sandbox.Process.Kill(); _ = sandbox.Wait() }()
			nothing, err := null.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer nothing.Close()
			p, err := Start(dir, &Request{
				ID: "c", Command: []string{runtime}, Env: os.Environ(), Log: filepath.Join(dir, "log"),
				Sandbox: sandbox.Process.Pid, Streams: [3]*os.File{nothing, nothing, nothing},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Go(t.Context(), 10*time.Second); err != nil {
				t.Fatal(err)
			}
			var status unix.WaitStatus
			if _, err := unix.Wait4(p.PID, &status, 0, nil); err != nil {
				t.Fatal(err)
			}
			if status.ExitStatus() != c.code {
				t.Errorf("it has ended with %d, want %d", status.ExitStatus(), c.code)
			}
		})
	}
}
