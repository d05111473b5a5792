package hook

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
)

// asProgram has the test's own binary kill all that it starts. With Argument it runs a hook, as the keeper's program
// does.
const asProgram = "BERTH_TEST_HOOK"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		killer()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == Argument {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// killer starts a tree of processes and kills it, and then prints those of its processes that live.
func killer() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	cmd := exec.Command("sh", "-c", `p() { for i in 1 2 3; do setsid sleep 300 & echo $!; done; }
		p; (p; (p; sleep 300) & p) & p; echo all; sleep 300`)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	var pids []string
	lines := bufio.NewScanner(out)
	for lines.Scan() && (lines.Text() != "all" || len(pids) < 6) {
		pids = append(pids, lines.Text())
	}
	go func() { ended <- cmd.Wait() }()
	killAll(cmd.Process.Pid)
	<-ended
	for _, pid := range pids {
		if data, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && strings.HasPrefix(string(data), "sleep") {
			os.Stdout.WriteString(pid + " lives\n")
		}
	}
}

// TestAllThatAHookHasStartedIsKilled, whatever ends while it is looked for. Seen to fail, once in some hundred times,
// with one list of children that has none that live.
func TestAllThatAHookHasStartedIsKilled(t *testing.T) {
	for range 100 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// running starts a supervised hook that notes its parent and itself in a file. over gets the result.
func running(t *testing.T) (parent, hook int, over <-chan error) {
	t.Helper()
	noted := filepath.Join(t.TempDir(), "pids")
	hooks := configs.Hooks{configs.CreateRuntime: {configs.NewCommandHook(&configs.Command{
		Path: "/bin/sh", Args: []string{"sh", "-c", "echo $PPID $$ >" + noted + "; exec sleep 300"},
	})}}
	Supervise(hooks, "c")
	ended := make(chan error, 1)
	go func() { ended <- hooks.Run(configs.CreateRuntime, &specs.State{Status: specs.StateCreating}) }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(noted)
		if n, _ := fmt.Sscanf(string(text), "%d %d\n", &parent, &hook); n == 2 {
			return parent, hook, ended
		}
		if time.Now().After(deadline) {
			t.Fatal("the hook does not begin")
		}
	}
}

// TestAHookEndsWithTheProcessThatLimitsIt, which the kernel may kill for want of memory. Seen to fail without the
// kernel's signal at the end of a parent.
func TestAHookEndsWithTheProcessThatLimitsIt(t *testing.T) {
	parent, hook, over := running(t)
	if err := unix.Kill(parent, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err == nil {
		t.Error("the hook counts as one that has ended well")
	}
	for deadline := time.Now().Add(10 * time.Second); procfs.CommandLine(hook) != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = unix.Kill(hook, unix.SIGKILL)
			t.Fatal("the hook goes on without a limit")
		}
	}
}

// TestAHookDoesNotBeginForAKeeperThatHasEnded before the process that limits the hook has looked: the parent of that is
// another process by then. Seen to fail where the parent that it had was watched, whichever that was.
func TestAHookDoesNotBeginForAKeeperThatHasEnded(t *testing.T) {
	keeper := exec.Command("true")
	if err := keeper.Run(); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	cmd := exec.Command(os.Args[0], Argument, optionParent, strconv.Itoa(keeper.Process.Pid), "60",
		"/bin/touch", "touch", ran)
	cmd.Stdin = strings.NewReader(`{"status": "creating"}`)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the keeper has ended") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the hook has run")
	}
}

// TestTheSearchForWhatIsLeftGetsSlower, as it may last for ever. Seen to fail with a pause that stays.
func TestTheSearchForWhatIsLeftGetsSlower(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, 50 * time.Millisecond: time.Millisecond, time.Second: 10 * time.Millisecond,
		time.Minute: 100 * time.Millisecond,
	} {
		if got := lookPause(since); got != want {
			t.Errorf("after %v it pauses for %v, want %v", since, got, want)
		}
	}
}

// TestRunningHooks are those that this program itself runs. A process that a container has left, and that has a hook's
// arguments, is none.
func TestRunningHooks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Argument), []byte("read line"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := exec.Cmd{Path: "/bin/sh", Dir: dir,
		Args: []string{"berth-keeper", Argument, optionContainer, "other", "60", "/bin/true", "true"}}
	end, err := other.StdinPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		end.Close()
		_ = other.Wait()
	}()
	parent, hook, over := running(t)
	start, err := pidfd.StartTime(parent)
	if err != nil {
		t.Fatal(err)
	}
	if got := Running(nil); len(got) != 1 || got["c"] != start {
		t.Errorf("hooks run for %v, want c since %d", got, start)
	}
	if got := Running(map[int]bool{parent: true}); len(got) != 0 {
		t.Errorf("with an exception hooks run for %v", got)
	}
	if err := unix.Kill(hook, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-over
	if got := Running(nil); len(got) != 0 {
		t.Errorf("after the end hooks run for %v", got)
	}
}
