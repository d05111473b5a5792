package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"berth/internal/asroot"
	"berth/internal/keeper/record"
)

// TestAnExecIsKilledWithWhatExecutesAProgram: a process has neither an environment nor arguments while the kernel
// executes a program. If it has left its session and its parents too, it is told by its mark when it has.
//
// Seen to fail where two looks that find nothing new were all.
func TestAnExecIsKilledWithWhatExecutesAProgram(t *testing.T) {
	asroot.Need(t, "cgroups")
	dir := newCgroup(t, "berth-test-"+filepath.Base(t.TempDir())+"-kill")
	paths := map[string]string{"": dir}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		paths = map[string]string{"pids": dir}
	}
	marked := start(t, dir, 0, []string{ExecMark + "e"}, "sleep", "60")
	other := start(t, dir, 0, nil, "sleep", "60")
	first := exec.Command("true") // the exec's first process, which has left the other one
	if err := first.Run(); err != nil {
		t.Fatal(err)
	}
	usual := memory
	defer func() { memory = usual }()
	until := time.Now().Add(50 * time.Millisecond)
	soon := func(read func(int, int) string) func(int, int) string {
		return func(pid, limit int) string {
			if time.Now().Before(until) {
				return ""
			}
			return read(pid, limit)
		}
	}
	memory.environment, memory.arguments = soon(usual.environment), soon(usual.arguments)
	KillStarted(&record.Exec{PID: first.Process.Pid, ExecID: "e", Marked: true}, paths)
	for end := time.Now().Add(10 * time.Second); executed(marked.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the process with the mark lives")
		}
	}
	if !executed(other.Process.Pid) {
		t.Error("another process of the container is killed")
	}
}

// executed says whether a process lives, and runs a program.
func executed(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && len(b) > 0
}
