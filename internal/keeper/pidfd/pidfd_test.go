package pidfd_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
)

// A process may end, and its descriptor be closed, while somebody signals it: that is told as a process that is gone,
// by an error that callers know. Seen to fail with what the file's Control returned, which is no error of package os.
func TestSignalAfterClose(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := pidfd.Open(cmd.Process.Pid, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("an ended process: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed descriptor: %v", err)
	}
}
