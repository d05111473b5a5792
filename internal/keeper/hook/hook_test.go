package hook

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asProgram has the test's own binary kill all that it starts.
const asProgram = "BERTH_TEST_HOOK"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		killer()
		return
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
