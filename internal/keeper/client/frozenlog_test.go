package client_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/procfs"
	"berth/internal/quota/quotatest"
)

// hungThreads is how many threads of a process wait in the kernel such that no signal ends it.
func hungThreads(pid int) (n int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), ") D ") {
			n++
		}
	}
	return n
}

// TestAKeeperThatIsKilledInAWriteThatHangsIsReplaced: the kernel keeps its descriptors, and so its lock and its
// sockets, for as long as one of its threads waits for a disk. The next keeper runs execs meanwhile, and so does the
// one after that. When the disk answers, the log has each line once.
func TestAKeeperThatIsKilledInAWriteThatHangsIsReplaced(t *testing.T) {
	mount := quotatest.Mount(t, "ext4", "defaults")
	n := start(t)
	hung := n.request("hung", "sh", "-c", "for i in $(seq 1 2000); do echo line $i; usleep 5000; done; exit 3")
	hung.LogPath = filepath.Join(mount, "0.log")
	n.run(hung)
	n.run(n.request("well", "sh", "-c", "for i in $(seq 1 2000); do echo line $i; usleep 5000; done; exit 4"))
	thaw := quotatest.Freeze(t, mount)
	first := n.pid()
	n.until("a write to the log hangs", func() bool { return hungThreads(first) > 0 })
	killed := n.client.Killed()
	for i := range 2 {
		pid := n.pid()
		begin := time.Now()
		n.end(pid, syscall.SIGKILL)
		if s := procfs.Status(first); len(s) == 0 || s[0] != "Z" || hungThreads(first) == 0 {
			t.Errorf("the first keeper is %v, with %d threads that hang", s, hungThreads(first))
		}
		// Its output is of no use: the keeper that was killed may have been sent the pipe, and keeps it.
		id := fmt.Sprint("exec", i)
		if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
			ContainerID: "well", ExecID: id, Process: n.process("sh", "-c", "exit 7"),
		}); err != nil {
			t.Fatal(err)
		}
		if exit, err := n.client.WaitExec(n.ctx(), "well", id); err != nil || exit.ExitCode != 7 {
			t.Errorf("exec: %+v, %v", exit, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the first exec was answered after %v", took)
		}
		if now := n.pid(); now == pid {
			t.Errorf("it is still keeper %d that answers", now)
		}
	}
	select {
	case <-killed:
	default:
		t.Error("who waits for output of the first keeper is not told")
	}
	n.endedOrphan("well", 4)
	thaw()
	n.endedOrphan("hung", 3)
	var want strings.Builder
	for i := 1; i <= 2000; i++ {
		fmt.Fprintln(&want, "line", i)
	}
	for _, path := range []string{hung.LogPath, n.logPath("well")} {
		if got := n.output("stdout", path); got != want.String() {
			t.Errorf("the log %s is not whole: %d bytes of %d", path, len(got), want.Len())
		}
	}
}
