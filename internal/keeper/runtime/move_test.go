package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/internal/asroot"
	"berth/internal/cgroup/nested"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/procfs"
)

// TestAnExecIsMovedWithWhatExecutesAProgram: a process has neither an environment nor arguments while the kernel
// executes a program, and this may take a busy machine some time. One that runs without an environment is waited for no
// longer.
//
// A machine that stands still during a look does not make that one the last.
//
// Seen to fail where ten looks were all, where a process without an environment was looked at until then, and where the
// clock was read after a look.
func TestAnExecIsMovedWithWhatExecutesAProgram(t *testing.T) {
	asroot.Need(t, "cgroups")
	dir := newCgroup(t, "berth-test-"+filepath.Base(t.TempDir())+"-move")
	own := filepath.Join(dir, "berth-exec-e")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 1000 {
			if os.Remove(own) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("its cgroup is left")
	})
	paths := map[string]string{"": dir}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		paths = map[string]string{"pids": dir}
	}
	if cgroupdir.Members(paths) != dir {
		t.Fatalf("processes of the cgroup are looked for in %q", cgroupdir.Members(paths))
	}
	marked := start(t, dir, 0, []string{ExecMark + "e"}, "sleep", "60")
	first := exec.Command("true") // the exec's first process, which has left the other one
	if err := first.Run(); err != nil {
		t.Fatal(err)
	}
	usual := memory
	defer func() { memory = usual }()
	away := filepath.Join(dir, "cgroup.procs")
	for what, halt := range map[string]time.Duration{"it runs": 0, "it stands still": 2 * moveWait} {
		if err := cgroupdir.WriteFile(away, fmt.Sprint(marked.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(50 * time.Millisecond)
		soon := func(read func(int, int) string) func(int, int) string {
			return func(pid, limit int) string {
				if time.Now().Before(until) {
					return ""
				}
				return read(pid, limit)
			}
		}
		memory.environment = soon(usual.environment)
		memory.arguments = func(pid, limit int) string {
			defer time.Sleep(halt)
			return soon(usual.arguments)(pid, limit)
		}
		MoveExec(first.Process.Pid, paths, own, "e")
		if !inCgroup(own, marked.Process.Pid) {
			t.Errorf("the machine %s: a process that had executed a program meanwhile is not in the exec's cgroup", what)
		}
	}

	memory = usual
	script := "env -i sleep 61; :"
	start(t, dir, 0, nil, "sh", "-c", script)
	bare := func() bool {
		pids, err := nested.Processes(dir)
		return err == nil && slices.ContainsFunc(pids, func(pid int) bool {
			return procfs.CommandLine(pid) == "sleep\x0061\x00" && procfs.Environment(pid, 1) == ""
		})
	}
	for end := time.Now().Add(10 * time.Second); !bare(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no process has no environment")
		}
	}
	looks := 0
	memory.arguments = func(pid, limit int) string { looks++; return usual.arguments(pid, limit) }
	MoveExec(first.Process.Pid, paths, own, "e")
	if looks != 1 {
		t.Errorf("a process without an environment is looked at %d times", looks)
	}
}
