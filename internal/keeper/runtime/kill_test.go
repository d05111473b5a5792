package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/asroot"
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
	awaitCommandLine(t, loop.Process.Pid, loop.Args)
	waited := make(chan error, 1)
	go func() { waited <- loop.Wait() }()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	match := func(pid int) bool { return strings.Contains(procfs.CommandLine(pid), mark) }
	ended, err := KillMatching(10*time.Second, nil, func(line string) bool { return strings.Contains(line, mark) })
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

// newCgroup makes a cgroup, and ends what is in it with the test.
func newCgroup(t *testing.T, name string) (dir string) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
		root += "/pids" // of cgroup v1
	}
	dir = filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no cgroup can be made here:", err)
	}
	t.Cleanup(func() {
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if err = os.Remove(dir); err == nil {
				return
			}
		}
		t.Error(err)
	})
	return dir
}

// start starts a process in a cgroup, as a user, and ends it and its children with the test.
func start(t *testing.T, cgroup string, uid uint32, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `read go; exec "$@"`, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	err = os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0)
	if _, werr := fmt.Fprintln(stdin, "go"); err != nil || werr != nil {
		t.Fatal(errors.Join(err, werr))
	}
	awaitCommandLine(t, cmd.Process.Pid, args)
	return cmd
}

// awaitCommandLine waits until a process executes a program with these arguments: during its execve it has none.
func awaitCommandLine(t *testing.T, pid int, args []string) {
	t.Helper()
	want := strings.Join(args, "\x00") + "\x00"
	for end := time.Now().Add(10 * time.Second); procfs.CommandLine(pid) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d has the arguments %q", pid, procfs.CommandLine(pid))
		}
	}
}

// TestWhatLooksLikeACallEndsNoSearch: the processes of another container, and of a user of the node, may have any
// command line, and always new ones. They are neither waited for nor killed. Seen to fail where only the command line
// counted.
func TestWhatLooksLikeACallEndsNoSearch(t *testing.T) {
	asroot.Need(t, "cgroups")
	other := strings.Repeat("0123456789abcdef", 4)[:54] + fmt.Sprintf("%010x", os.Getpid())
	own := "f" + other[1:]
	for what, c := range map[string]struct {
		cgroup string
		uid    uint32
	}{
		"another container, as root": {other, 0},
		"another container":          {other, 65534},
		"a user of the node":         {fmt.Sprintf("berth-test-%d-0", os.Getpid()), 65534},
	} {
		t.Run(what, func(t *testing.T) {
			dir := newCgroup(t, c.cgroup)
			mark := "berth-looks-like-" + other
			match := func(pid int) bool { return strings.Contains(procfs.CommandLine(pid), mark) }
			for range 3 { // each has a child with the mark, and soon another one
				start(t, dir, c.uid, []string{"MARK=" + mark}, "sh", "-c",
					`while :; do sh -c 'sleep 0.1; :' "$MARK"; done`)
			}
			lone := start(t, dir, c.uid, nil, "sh", "-c", "sleep 60; :", mark)
			call := exec.Command("sh", "-c", "sleep 60; :", mark) // in the cgroup of the test
			if err := call.Start(); err != nil {
				t.Fatal(err)
			}
			awaitCommandLine(t, call.Process.Pid, call.Args)
			ended, err := KillMatching(30*time.Second, []string{own}, func(line string) bool {
				return strings.Contains(line, mark)
			})
			if !ended || err != nil {
				t.Errorf("the search has not ended: %v", err)
			}
			if syscall.Kill(lone.Process.Pid, 0) != nil || !match(lone.Process.Pid) {
				t.Error("a process that only looks like a call was killed")
			}
			if match(call.Process.Pid) {
				t.Error("a call is left")
				_ = call.Process.Kill()
			}
			_ = call.Wait()
		})
	}
	t.Run("its own container", func(t *testing.T) {
		dir := newCgroup(t, own)
		mark := "berth-is-a-call-" + own
		made := start(t, dir, 65534, nil, "sh", "-c", "sleep 60; :", mark)
		match := func(line string) bool { return strings.HasPrefix(line, "sh\x00") && strings.Contains(line, mark) }
		if ended, err := KillMatching(10*time.Second, []string{"slice:berth:" + own}, match); !ended || err != nil {
			t.Errorf("ended %v, %v", ended, err)
		}
		if match(procfs.CommandLine(made.Process.Pid)) {
			t.Error("what a call has made in its container lives")
		}
	})
}

// TestACallThatIsBeingExecutedIsWaitedFor: a process has no arguments while the kernel executes its program, and those
// of its keeper before, if it has been created by one that was killed since. Seen to fail where one look without a
// match was the last.
func TestACallThatIsBeingExecutedIsWaitedFor(t *testing.T) {
	self := procfs.Arguments(os.Getpid(), maxArguments)
	for what, line := range map[string]string{"in execve": "", "before it": self} {
		t.Run(what, func(t *testing.T) {
			mark := fmt.Sprintf("berth-is-executed-%d", os.Getpid())
			// The process is no child of this one.
			out, err := exec.Command("sh", "-c", `sh -c "sleep 60; :" "$0" >/dev/null 2>&1 & echo $!`, mark).Output()
			if err != nil {
				t.Fatal(err)
			}
			call, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(call, syscall.SIGKILL) }()
			awaitCommandLine(t, call, []string{"sh", "-c", "sleep 60; :", mark})
			usual, looks := memory, 0
			defer func() { memory = usual }()
			memory.arguments = func(pid, limit int) string {
				if pid == call {
					if looks++; looks <= 2 {
						return line
					}
				}
				return usual.arguments(pid, limit)
			}
			ended, err := KillMatching(10*time.Second, nil, func(line string) bool { return strings.Contains(line, mark) })
			if !ended || err != nil {
				t.Errorf("ended %v, %v", ended, err)
			}
			if strings.Contains(procfs.CommandLine(call), mark) {
				t.Errorf("the call lives after %d looks", looks)
			}
		})
	}
}

// TestALookThatTakesLongIsNotTheLast: the machine may stand still during a look, and that one cannot say then that
// there is no call. Seen to fail where the clock was read after a look: a call that was being executed was left.
func TestALookThatTakesLongIsNotTheLast(t *testing.T) {
	mark := fmt.Sprintf("berth-executed-slowly-%d", os.Getpid())
	// The process is no child of this one.
	out, err := exec.Command("sh", "-c", `sh -c "sleep 60; :" "$0" >/dev/null 2>&1 & echo $!`, mark).Output()
	if err != nil {
		t.Fatal(err)
	}
	call, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(call, syscall.SIGKILL) }()
	awaitCommandLine(t, call, []string{"sh", "-c", "sleep 60; :", mark})
	const bound = 50 * time.Millisecond
	usual, looks := memory, 0
	defer func() { memory = usual }()
	memory.arguments = func(pid, limit int) string {
		if pid == call {
			if looks++; looks == 1 {
				time.Sleep(4 * bound)
				return ""
			}
		}
		return usual.arguments(pid, limit)
	}
	if _, err := KillMatching(bound, nil, func(line string) bool { return strings.Contains(line, mark) }); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); strings.Contains(procfs.CommandLine(call), mark); {
		if time.Now().After(end) {
			t.Fatalf("the call lives after %d looks", looks)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestNoUsualProcessIsWaitedFor: kernel threads, zombies, children of this process and the processes of the node are
// none that may become a call, so one look is enough.
func TestNoUsualProcessIsWaitedFor(t *testing.T) {
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zombie.Wait() }()
	usual, looks := memory, 0
	defer func() { memory = usual }()
	memory.arguments = func(pid, limit int) string {
		if pid == zombie.Process.Pid {
			looks++
		}
		return usual.arguments(pid, limit)
	}
	for end := time.Now().Add(10 * time.Second); procfs.Status(zombie.Process.Pid)[0] != "Z"; {
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
		time.Sleep(time.Millisecond)
	}
	// Other programs may be executed on this machine at this moment.
	for end := time.Now().Add(time.Minute); ; {
		looks = 0
		if ended, err := KillMatching(10*time.Second, nil, func(string) bool { return false }); !ended || err != nil {
			t.Fatalf("ended %v, %v", ended, err)
		}
		if looks == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it took %d looks", looks)
		}
	}
}
