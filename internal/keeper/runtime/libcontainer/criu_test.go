package libcontainer

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
	"berth/internal/quota/quotatest"
)

// TestTheEndOfACheckpointDoesNotWaitForItsDisk: a process that writes to a disk that does not answer cannot be killed.
// What waits for the end of the checkpoint would wait for the disk. Seen to fail with a wait for the processes without
// a limit.
func TestTheEndOfACheckpointDoesNotWaitForItsDisk(t *testing.T) {
	mount := quotatest.Mount(t, "ext4", "defaults")
	thaw := quotatest.Freeze(t, mount)
	cmd := exec.Command("touch", filepath.Join(mount, "image"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if s := procfs.Status(pid); len(s) > 0 && s[0] == "D" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the program does not wait for the disk")
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		endGroup(pid, 100*time.Millisecond)
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Error("it waits for the disk")
	}
	thaw()
	<-over
	var status unix.WaitStatus
	if got, err := unix.Wait4(pid, &status, 0, nil); got == pid && (err != nil || status.Signal() != unix.SIGKILL) {
		t.Errorf("the program ended with %v, %v", status, err)
	}
}
