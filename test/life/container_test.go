package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestAnEndHasACodeAndAReason(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for _, test := range []struct {
		script, reason string
		code           int32
	}{
		{"exit 0", "Completed", 0},
		{"exit 3", "Error", 3},
		{"exit 255", "Error", 255},
	} {
		t.Run(test.script, func(t *testing.T) {
			s := p.Run(nodetest.Sh(test.script)).WaitExit()
			if s.ExitCode != test.code || s.Reason != test.reason {
				t.Errorf("got %d (%s), want %d (%s)", s.ExitCode, s.Reason, test.code, test.reason)
			}
		})
	}
}

func TestAContainerThatIsKilledFromOutsideEndsWith137(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	if err := syscall.Kill(hostPID(t, c), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s := c.WaitExit(); s.ExitCode != 137 || s.Reason != "Error" {
		t.Errorf("got %d (%s), want 137 (Error)", s.ExitCode, s.Reason)
	}
}

func TestAContainerThatTakesTooMuchMemoryIsOOMKilled(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	// A shell variable that grows is memory that cannot be reclaimed.
	c := p.Run(nodetest.Sh("x=0123456789abcdef; while :; do x=$x$x; done"), func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
	})
	s := c.WaitExit()
	if s.ExitCode != 137 || s.Reason != "OOMKilled" {
		t.Errorf("got %d (%s), want 137 (OOMKilled)", s.ExitCode, s.Reason)
	}
}

func TestTheImagesDefaultsAreMergedWithWhatIsAskedFor(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	defaults := func(c *cri.ContainerConfig) { c.Image.Image, c.Command = node.Defaults, nil }
	shell := func(script string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) { c.Image.Image, c.Command = node.Defaults, []string{"sh", "-c", script} }
	}
	for _, test := range []struct {
		claim, want string
		edits       []nodetest.ContainerEdit
	}{
		{"entrypoint and command are the image's", "entry cmd\n", []nodetest.ContainerEdit{defaults}},
		{"args replace the image's command alone", "entry more args\n",
			[]nodetest.ContainerEdit{defaults, func(c *cri.ContainerConfig) {
				c.Args = []string{"more", "args"}
			}}},
		{"a command replaces both", "own\n", []nodetest.ContainerEdit{func(c *cri.ContainerConfig) {
			c.Image.Image, c.Command = node.Defaults, []string{"/bin/echo", "own"}
		}}},
		{"a command and args", "own args\n", []nodetest.ContainerEdit{func(c *cri.ContainerConfig) {
			c.Image.Image, c.Command, c.Args = node.Defaults, []string{"/bin/echo", "own"}, []string{"args"}
		}}},
		{"environment", "given image x=y\n",
			[]nodetest.ContainerEdit{shell("echo $FOO $KEPT $EQ"), func(c *cri.ContainerConfig) {
				c.Envs = []*cri.KeyValue{{Key: "FOO", Value: []byte("given")}, {Key: "EQ", Value: []byte("x=y")}}
			}}},
		{"working directory", "/work\n", []nodetest.ContainerEdit{shell("pwd")}},
		{"own working directory", "/tmp\n", []nodetest.ContainerEdit{shell("pwd"),
			func(c *cri.ContainerConfig) { c.WorkingDir = "/tmp" }}},
		{"a working directory that is not there is made",
			"/made/for/it\n", []nodetest.ContainerEdit{shell("pwd"), func(c *cri.ContainerConfig) {
				c.WorkingDir = "/made/for/it"
			}}},
		{"a working directory is made below a root that is read-only",
			"/made/for/it\nread-only\n",
			[]nodetest.ContainerEdit{shell("pwd; touch x 2>/dev/null || echo read-only"), func(c *cri.ContainerConfig) {
				c.WorkingDir, c.Linux.SecurityContext.ReadonlyRootfs = "/made/for/it", true
				c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 0}
			}}},
		{"user by name, with group and groups of the image", "1001 1002 1002 1003\n",
			[]nodetest.ContainerEdit{shell("echo $(id -u) $(id -g) $(id -G)")}},
		{"home of the image's user", "/home/app\n", []nodetest.ContainerEdit{shell("echo $HOME")}},
	} {
		t.Run(test.claim, func(t *testing.T) {
			c := p.Run(test.edits...)
			if s := c.WaitExit(); s.ExitCode != 0 {
				t.Fatalf("ended with %d: %s", s.ExitCode, c.Log())
			}
			if got := c.Stdout(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestWhoAContainerRunsAs(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	ids := nodetest.Sh("echo $(id -u):$(id -g):$(id -G | tr ' ' ,)")
	image := func(c *cri.ContainerConfig) { c.Image.Image = node.Defaults }
	for _, test := range []struct {
		claim, want string
		edit        func(*cri.LinuxContainerSecurityContext)
	}{
		{"the image's user", "1001:1002:1002,1003", func(*cri.LinuxContainerSecurityContext) {}},
		{"a number that the image knows", "1001:1002:1002,1003", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser = &cri.Int64Value{Value: 1001}
		}},
		{"a number that the image does not know", "4321:0:0", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser = &cri.Int64Value{Value: 4321}
		}},
		{"a name", "0:0:0", func(s *cri.LinuxContainerSecurityContext) { s.RunAsUsername = "root" }},
		{"a number and a group", "5:6:6", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 5}, &cri.Int64Value{Value: 6}
		}},
		{"supplementary groups", "5:6:6,77,88", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 5}, &cri.Int64Value{Value: 6}
			s.SupplementalGroups = []int64{77, 88}
		}},
	} {
		t.Run(test.claim, func(t *testing.T) {
			if got := strings.TrimSpace(p.Output("", image, ids, nodetest.Security(test.edit))); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestAnUnknownUserIsRefused(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUsername = "nobody-knows-me"
	}))
	if err == nil {
		err = c.TryStart()
	}
	if err == nil || !strings.Contains(err.Error(), "nobody-knows-me") && !nodetest.Containerd() {
		t.Errorf("got %v, want an error that names the user", err)
	}
}

func TestAStopGivesGraceAndThenKills(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	t.Run("SIGTERM is enough", func(t *testing.T) {
		c := p.Run(nodetest.Sh("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done"))
		c.WaitLog("ready")
		started := time.Now()
		c.Stop(90)
		if took := time.Since(started); took > 80*time.Second {
			t.Errorf("took %v", took)
		}
		if s := c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 9 {
			t.Errorf("got %v %d", s.State, s.ExitCode)
		}
		if !strings.Contains(c.Stdout(), "bye") {
			t.Errorf("log: %q", c.Log())
		}
	})
	t.Run("SIGKILL comes after the grace period", func(t *testing.T) {
		c := p.Run(nodetest.Sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
		c.WaitLog("ready")
		started := time.Now()
		c.Stop(1)
		if took := time.Since(started); took < 900*time.Millisecond || took > 40*time.Second {
			t.Errorf("took %v, want about 1 s", took)
		}
		if s := c.Status(); s.ExitCode != 137 {
			t.Errorf("got %d, want 137", s.ExitCode)
		}
	})
	t.Run("no grace period kills at once", func(t *testing.T) {
		c := p.Run(nodetest.Sh("trap '' TERM; while :; do sleep 0.05; done"))
		started := time.Now()
		c.Stop(0)
		if took := time.Since(started); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	})
	t.Run("the image's stop signal is sent", func(t *testing.T) {
		c := p.Run(func(c *cri.ContainerConfig) { c.Image.Image, c.Command = node.StopSignal, nil })
		c.WaitLog("ready")
		c.Stop(60)
		if s := c.Status(); s.ExitCode != 7 {
			t.Errorf("got %d, want 7: %s", s.ExitCode, c.Log())
		}
	})
	t.Run("the container's own stop signal goes before the image's", func(t *testing.T) {
		nodetest.BerthOnly(t, "the field is newer")
		c := p.Run(nodetest.Sh("trap 'exit 8' USR2; echo ready; while :; do sleep 0.05; done"), func(c *cri.ContainerConfig) {
			c.Image.Image, c.StopSignal = node.StopSignal, cri.Signal_SIGNAL_SIGUSR2
		})
		c.WaitLog("ready")
		c.Stop(60)
		if s := c.Status(); s.ExitCode != 8 {
			t.Errorf("got %d, want 8", s.ExitCode)
		}
	})
	t.Run("a second stop with less grace cuts the first short", func(t *testing.T) {
		c := p.Run(nodetest.Sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
		c.WaitLog("ready")
		done := make(chan error, 1)
		go func() {
			_, err := n.Runtime.StopContainer(nodetest.Context(t), &cri.StopContainerRequest{ContainerId: c.ID, Timeout: 150})
			done <- err
		}()
		time.Sleep(300 * time.Millisecond)
		c.Stop(0)
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the first stop: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the first stop still waits")
		}
	})
}

// frozen freezes a container's cgroup, and thaws it at the end.
func frozen(t *testing.T, c *nodetest.Container) {
	t.Helper()
	var file, freeze, thaw string
	for _, dir := range cgroups(t, c) {
		if path := filepath.Join(dir, "freezer.state"); exists(path) {
			file, freeze, thaw = path, "FROZEN", "THAWED"
		} else if path := filepath.Join(dir, "cgroup.freeze"); exists(path) && file == "" && procs(dir) > 0 {
			file, freeze, thaw = path, "1", "0"
		}
	}
	if file == "" {
		t.Skip("no freezer on this machine")
	}
	if err := os.WriteFile(file, []byte(freeze), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, []byte(thaw), 0) }) // gone once the container is
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// procs is how many processes a cgroup has.
func procs(dir string) int {
	data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return len(strings.Fields(string(data)))
}

func TestAFrozenContainerDelaysNobody(t *testing.T) {
	nodetest.BerthOnly(t, "its removal may wait")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	stuck, fine := p.Run(), p.Run()
	frozen(t, stuck)

	// What waits for a frozen process waits for ever, so the limit may be long.
	const limit = 40 * time.Second
	quick := func(claim string, call func() error) {
		t.Helper()
		started := time.Now()
		if err := call(); err != nil {
			t.Errorf("%s: %v", claim, err)
		}
		if took := time.Since(started); took > node.Patience(limit) {
			t.Errorf("%s took %v", claim, took)
		}
	}
	ctx := nodetest.Context(t)
	// An exec in the frozen container hangs; it is the only one that does.
	hung := make(chan error, 1)
	go func() {
		_, err := stuck.Exec(2, "true")
		hung <- err
	}()
	time.Sleep(200 * time.Millisecond)
	quick("list", func() error {
		_, err := n.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
		return err
	})
	quick("status of the frozen one", func() error {
		_, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: stuck.ID})
		return err
	})
	quick("stats of all", func() error {
		_, err := n.Runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
		return err
	})
	quick("exec in the other", func() error { _, err := fine.Exec(40, "true"); return err })
	quick("another container in the same pod", func() error { p.Run(); return nil })
	quick("another pod", func() error { nodetest.RunPod(t, n).Run(); return nil })
	select {
	case err := <-hung:
		if err == nil {
			t.Error("an exec in a frozen container ends well")
		}
	case <-time.After(limit):
		t.Error("the exec's timeout of 2 s does not end it")
	}
	quick("stop of the frozen one", func() error {
		_, err := n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: stuck.ID, Timeout: 1})
		return err
	})
	if s := stuck.Status(); s.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("the frozen one is %v after stop", s.State)
	}
}

// TestAStopThatIsRepeatedSendsNoSecondSignal, as a kubelet does that was restarted or whose deadline has passed: many
// programs take a second SIGTERM for "end at once". berthd is restarted meanwhile too. Seen to fail with a signal for
// each stop.
func TestAStopThatIsRepeatedSendsNoSecondSignal(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	c := nodetest.RunPod(t, n).Run(nodetest.Sh("trap 'echo told' TERM; echo begun; while :; do sleep 0.1; done"))
	c.WaitLog("begun")
	stop := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(nodetest.Context(t), time.Second)
		defer cancel()
		if _, err := n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.ID, Timeout: 60}); err == nil {
			t.Error("a stop of what does not end has ended well")
		}
		c.WaitLog("told")
	}
	stop()
	stop()
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	stop()
	c.Stop(1)
	if told := strings.Count(c.Log(), "told"); told != 1 {
		t.Errorf("it was told to end %d times", told)
	}
	if s := c.Status(); s.ExitCode != 137 {
		t.Errorf("it has ended with %d", s.ExitCode)
	}
}

func TestALogIsInTheFormatOfTheCRI(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("echo out; echo err >&2; echo; printf 'no newline'"))
	c.WaitExit()
	line := regexp.MustCompile(`^(\S+) (stdout|stderr) ([FP]) (.*)$`)
	var last time.Time
	var seen []string
	for text := range strings.Lines(c.Log()) {
		m := line.FindStringSubmatch(strings.TrimSuffix(text, "\n"))
		if m == nil {
			t.Fatalf("not a line of the format: %q", text)
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			t.Fatal(err)
		}
		if m[2] == "stdout" && at.Before(last) {
			t.Errorf("%v is before %v", at, last)
		} else if m[2] == "stdout" {
			last = at
		}
		seen = append(seen, m[2]+" "+m[3]+" "+m[4])
	}
	got := strings.Join(seen, "|")
	for _, want := range []string{"stdout F out", "stderr F err", "stdout F ", "stdout P no newline"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in %q", want, got)
		}
	}
	if c.Stderr() != "err\n" {
		t.Errorf("stderr: %q", c.Stderr())
	}
}

func TestALongLineIsSplitAt16KiB(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	const size = 50000
	c := p.Run(nodetest.Sh(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; echo next", size)))
	c.WaitExit()
	if got := c.Stdout(); got != strings.Repeat("x", size)+"\nnext\n" {
		t.Errorf("stdout is %d bytes, want %d", len(got), size+6)
	}
	partial, longest := 0, 0
	for line := range strings.Lines(c.Log()) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		longest = max(longest, len(parts[3]))
		if parts[2] == "P" {
			partial++
		}
	}
	if longest > 16384 || partial < size/16384 {
		t.Errorf("the longest piece is %d bytes, %d pieces are partial", longest, partial)
	}
}

func TestNothingOfALogIsLost(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	const lines = 200000
	c := p.Run(nodetest.Sh(fmt.Sprintf("seq 1 %d", lines)))
	if s := c.WaitExit(); s.ExitCode != 0 {
		t.Fatalf("ended with %d", s.ExitCode)
	}
	var got []string
	nodetest.Eventually(t, 10*time.Second, "every line is in the log", func() error {
		if got = strings.Fields(c.Stdout()); len(got) < lines {
			return fmt.Errorf("%d lines, want %d", len(got), lines)
		}
		return nil
	})
	for i, text := range got {
		if text != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q", i+1, text)
		}
	}
}

func TestALogIsReopened(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done"))
	c.WaitLog("line 3")
	rotated := c.LogPath() + ".1"
	if err := os.Rename(c.LogPath(), rotated); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Runtime.ReopenContainerLog(nodetest.Context(t),
		&cri.ReopenContainerLogRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	if !exists(c.LogPath()) {
		t.Error("reopened, and the new file is not there")
	}
	c.WaitLog("line ")
	c.Stop(0)
	old, err := os.ReadFile(rotated)
	if err != nil {
		t.Fatal(err)
	}
	want := 1
	for line := range strings.Lines(string(old) + c.Log()) {
		if !strings.HasSuffix(line, fmt.Sprintf(" stdout F line %d\n", want)) {
			t.Fatalf("want line %d, got %q", want, line)
		}
		want++
	}
	_, err = n.Runtime.ReopenContainerLog(nodetest.Context(t), &cri.ReopenContainerLogRequest{ContainerId: c.ID})
	if err == nil && !exists(c.LogPath()) {
		t.Error("a reopened log of an exited container is not there")
	}
}

func TestALogIsRotatedUnderLoadWithoutALostLine(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	const lines, least = 300000, 10
	c := p.Run(nodetest.Sh(fmt.Sprintf("seq 1 %d | sed 's/^/error /' >&2 & seq 1 %d | sed 's/^/line /'; wait",
		lines, lines)))
	var old []string
	for i := 0; ; i++ {
		rotated := fmt.Sprintf("%s.%d", c.LogPath(), i)
		if err := os.Rename(c.LogPath(), rotated); err != nil {
			t.Fatal(err)
		}
		old = append(old, rotated)
		_, err := n.Runtime.ReopenContainerLog(nodetest.Context(t), &cri.ReopenContainerLogRequest{ContainerId: c.ID})
		if err != nil {
			if state := c.Status().State; state != cri.ContainerState_CONTAINER_EXITED {
				t.Fatal(err)
			}
			break
		}
	}
	if len(old) < least {
		t.Skipf("the container ended after %d rotations", len(old))
	}
	nodetest.Eventually(t, 30*time.Second, "every line is in the log, once and in order", func() error {
		next := map[string]int{"stdout": 1, "stderr": 1}
		begun := map[string]string{} // a line whose end was late is in two pieces
		for _, name := range append(old, c.LogPath()) {
			data, err := os.ReadFile(name)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(data)) {
				f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
				if len(f) != 4 || next[f[1]] == 0 {
					return fmt.Errorf("%s: %q is no line of a log", filepath.Base(name), line)
				}
				want := fmt.Sprintf("line %d", next[f[1]])
				if f[1] == "stderr" {
					want = fmt.Sprintf("error %d", next[f[1]])
				}
				begun[f[1]] += f[3]
				if f[2] == "P" {
					continue
				}
				whole := begun[f[1]]
				if begun[f[1]] = ""; whole != want {
					return fmt.Errorf("%s: %q, want %q", filepath.Base(name), line, want)
				}
				next[f[1]]++
			}
		}
		if next["stdout"] != lines+1 || next["stderr"] != lines+1 {
			return fmt.Errorf("it ends before %v", next)
		}
		return nil
	})
	t.Logf("%d rotations", len(old))
}

func TestATerminalIsLoggedToo(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("tty; test -t 0 && test -t 1 && test -t 2 && echo all three"),
		func(c *cri.ContainerConfig) { c.Tty = true })
	if s := c.WaitExit(); s.ExitCode != 0 {
		t.Fatalf("ended with %d: %s", s.ExitCode, c.Log())
	}
	if got := c.Stdout(); !strings.Contains(got, "/dev/pts/0") && !strings.Contains(got, "/dev/console") ||
		!strings.Contains(got, "all three") {
		t.Errorf("got %q", got)
	}
}

func TestWithoutALogPathThereIsNoLog(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("seq 1 100000"), func(c *cri.ContainerConfig) { c.LogPath = "" })
	if s := c.WaitExit(); s.ExitCode != 0 || s.LogPath != "" {
		t.Errorf("ended with %d, log path %q", s.ExitCode, s.LogPath)
	}
}

func TestAContainerWithoutStdinReadsNothing(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	if got := p.Output("cat; echo end"); got != "end\n" {
		t.Errorf("got %q", got)
	}
}

func TestOrphansOfAContainerAreReapedWithIt(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("sleep 3601 & sleep 3602 & echo started; sleep 0.3"))
	c.WaitExit()
	nodetest.Eventually(t, 5*time.Second, "no process of the container is left", func() error {
		for _, dir := range cgroups(t, c) {
			if left := procs(dir); left > 0 {
				return fmt.Errorf("%d in %s", left, dir)
			}
		}
		return nil
	})
}

func TestACommandThatIsNotInTheImageIsNamed(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for _, test := range []struct {
		command string
		codes   []int32
	}{{"/no/such/program", []int32{127, 128}}, {"nosuchprogram", []int32{127, 128}},
		{"/etc/passwd", []int32{126, 127, 128}}, {"/etc", []int32{126, 127, 128}}} {
		t.Run(test.command, func(t *testing.T) {
			c, err := p.TryCreate(func(c *cri.ContainerConfig) { c.Command = []string{test.command} })
			if err != nil {
				t.Fatalf("create: %v", err)
			}
			err = c.TryStart()
			if err == nil || !strings.Contains(err.Error(), test.command) {
				t.Errorf("start: got %v, want an error that names %s", err, test.command)
			}
			s := c.Status()
			if s.State != cri.ContainerState_CONTAINER_EXITED || s.Message == "" {
				t.Errorf("it is %v, message %q", s.State, s.Message)
			}
			found := false
			for _, code := range test.codes {
				found = found || s.ExitCode == code
			}
			if !found {
				t.Errorf("exit code %d, want one of %v", s.ExitCode, test.codes)
			}
		})
	}
}

func TestAStartedContainerIsNotStartedAgain(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	if err := c.TryStart(); err == nil {
		t.Error("a running container was started")
	}
	c.Stop(0)
	if err := c.TryStart(); err == nil {
		t.Error("an exited container was started")
	}
}

// TestAStopEndsAContainerThatHasPausedAnother: Docker in a privileged container freezes a cgroup in that of its
// container.
//
// Seen to fail on cgroup v1 where only the container's own cgroup was thawed: the stop ran into its deadline.
func TestAStopEndsAContainerThatHasPausedAnother(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	// On cgroup v2 a privileged container sees the cgroups of the node.
	script := `d=/sys/fs/cgroup/freezer/paused state=freezer.state frozen=FROZEN
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	d=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/paused state=cgroup.freeze frozen=1
fi
sleep 4000 &
mkdir $d && echo $! >$d/cgroup.procs && echo $frozen >$d/$state && echo READY; sleep 4000`
	c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }),
		nodetest.Sh(script))
	c.WaitLog("READY")
	c.Stop(0)
	if st := c.Status(); st.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("it is %v", st.State)
	}
	c.Remove()
}

func TestARemovalOfARunningContainerKillsIt(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
	c.WaitLog("ready")
	pid := hostPID(t, c)
	c.Remove()
	nodetest.Eventually(t, 2*time.Second, "the process is gone", func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return fmt.Errorf("%d lives", pid)
		}
		return nil
	})
}
