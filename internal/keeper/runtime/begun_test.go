package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/null"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/record"
)

// TestAProxyThatWaitsHasNotBegun, also if its record has no command line. Seen to fail where only the processes of the
// stage and of libcontainer were known then: the container counted as begun, and its program never ran.
func TestAProxyThatWaitsHasNotBegun(t *testing.T) {
	nothing, err := null.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer nothing.Close()
	sandbox := exec.Command("sleep", "1000")
	if err := sandbox.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sandbox.Process.Kill(); _ = sandbox.Wait() }()
	dir := t.TempDir()
	p, err := proxy.Start(dir, &proxy.Request{
		ID: "c", Command: []string{"/bin/false"}, Env: os.Environ(), Log: filepath.Join(dir, "log"),
		Sandbox: sandbox.Process.Pid, Streams: [3]*os.File{nothing, nothing, nothing},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer func() { _ = unix.Kill(p.PID, unix.SIGKILL); _, _ = unix.Wait4(p.PID, nil, 0, nil) }()
	for end := time.Now().Add(10 * time.Second); !proxy.Waits(p.PID); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the proxy does not wait")
		}
	}
	start, err := pidfd.StartTime(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	if WaitingBegan(&record.Container{PID: p.PID, Start: start}) {
		t.Error("the proxy's program counts as begun")
	}
}
