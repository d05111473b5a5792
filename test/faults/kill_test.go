package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// counter writes numbered lines for ever, so that a line that is lost or doubled is seen. Some at a time: each sleep is
// a process, and some thirty of these containers would leave little of the machine to what is tested.
const counter = "i=0; while :; do for j in 1 2 3 4 5 6; do i=$((i+1)); echo line $i; done; sleep 0.03; done"

// witness is a container that must not notice what happens around it.
type witness struct {
	*nodetest.Container
	pid     int
	started int64
	counted int // lines
}

func newWitness(t *testing.T, p *nodetest.Pod, edits ...nodetest.ContainerEdit) *witness {
	t.Helper()
	return witnessOf(t, p.Run(append(edits, nodetest.Sh(counter))...))
}

// witnessOf takes a container that runs the counter.
func witnessOf(t *testing.T, c *nodetest.Container) *witness {
	t.Helper()
	c.WaitLog("line 1")
	w := &witness{Container: c, started: c.Status().StartedAt}
	var err error
	if w.pid, err = c.Pod.Node.ContainerPID(c.ID); err != nil {
		t.Fatal(err)
	}
	return w
}

// check says that the container is the same, still runs and writes, and that its log lacks nothing.
func (w *witness) check(t *testing.T) {
	t.Helper()
	s := w.Status()
	if s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != w.started {
		t.Fatalf("it is %v since %d, and was running since %d: %s %s", s.State, s.StartedAt, w.started, s.Reason, s.Message)
	}
	if err := syscall.Kill(w.pid, 0); err != nil {
		t.Fatalf("its process is gone: %v", err)
	}
	before := w.lines(t)
	if c := count(t); before > w.counted {
		c.add(tally.Lines, int64(before-w.counted))
		w.counted = before
	}
	nodetest.Eventually(t, 10*time.Second, "the log goes on", func() error {
		if after := w.lines(t); after < before+5 {
			return fmt.Errorf("it has %d lines, and had %d", after, before)
		}
		return nil
	})
	if got := w.Sh("echo from an exec"); got != "from an exec" {
		t.Errorf("exec: %q", got)
	}
}

// lines counts the lines of the log, which must be numbered without a gap.
func (w *witness) lines(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(w.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	log := string(data[:bytes.LastIndexByte(data, '\n')+1]) // the last may be being written
	n := strings.Count(log, "\n") - strings.Count(log, " stdout P ")
	if wrong, first := missing(log, n); wrong > 0 {
		count(t).add(tally.LinesWrong, wrong)
		t.Fatalf("%d lines are lost, doubled or in pieces: %s", wrong, first)
	}
	return n
}

func TestWhatHappensWhileTheDaemonIsDownIsKnownAfterwards(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	ends := p.Run(nodetest.Sh("echo first; sleep 0.7; echo last; exit 42"))
	killed := p.Run()
	w := newWitness(t, p)
	created := p.Create(nodetest.Sh("echo created before"))
	ends.WaitLog("first")
	victim, err := n.ContainerPID(killed.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1200 * time.Millisecond)
	before := w.lines(t)
	nodetest.Eventually(t, 10*time.Second, "the log goes on while the daemon is down", func() error {
		if after := w.lines(t); after <= before {
			return fmt.Errorf("it has %d lines", after)
		}
		return nil
	})
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if s := ends.WaitExit(); s.ExitCode != 42 || s.Reason != "Error" || s.FinishedAt == 0 {
		t.Errorf("ended with %d (%s) at %d", s.ExitCode, s.Reason, s.FinishedAt)
	}
	if got := ends.Stdout(); got != "first\nlast\n" {
		t.Errorf("its log: %q", got)
	}
	if s := killed.WaitExit(); s.ExitCode != 137 {
		t.Errorf("killed from outside: ended with %d (%s)", s.ExitCode, s.Reason)
	}
	w.check(t)
	created.Start()
	if s := created.WaitExit(); s.ExitCode != 0 || created.Stdout() != "created before\n" {
		t.Errorf("a container created before: %d, %q", s.ExitCode, created.Log())
	}
	if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_READY || s.Network.Ip == "" {
		t.Errorf("the pod is %v", s)
	}
	nothingLeft(t, n)
}

func TestTheDaemonEndsOnSIGTERMAndContainersLiveOn(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	w := newWitness(t, nodetest.RunPod(t, n))
	for range 3 {
		if err := n.Terminate(); err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		w.check(t)
	}
	nothingLeft(t, n)
}

// killBoth kills the keeper and then berthd, which starts both again, and returns how long no call was answered.
func (w *witness) killBoth(t *testing.T, n *node.Node) time.Duration {
	t.Helper()
	began := time.Now()
	w.killKeeper(t, n)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	answers(t, n, w)
	return time.Since(began)
}

// killKeeper ends when berthd has another one.
func (w *witness) killKeeper(t *testing.T, n *node.Node) {
	t.Helper()
	old, _ := n.KeeperPID()
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	keeperAgain(t, n, old)
	if err := n.WaitReady(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// keeperAgain waits for another keeper than the one with this PID.
func keeperAgain(t *testing.T, n *node.Node, old int) int {
	t.Helper()
	var now int
	nodetest.Eventually(t, 15*time.Second, "another keeper answers", func() error {
		pid, ok := n.KeeperPID()
		if !ok || pid == old {
			return fmt.Errorf("PID %d, %v", pid, ok)
		}
		now = pid
		return nil
	})
	return now
}

func TestKillingTheKeeperHurtsNoContainer(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	terminal := p.Run(nodetest.Sh("echo before; read x; echo after; exit 5"), func(c *cri.ContainerConfig) {
		c.Tty, c.Stdin = true, true
	})
	terminal.WaitLog("before")
	later := p.Run(nodetest.Sh("trap 'exit 21' TERM; echo ready; while :; do sleep 0.05; done"))
	later.WaitLog("ready")
	meanwhile := p.Run(nodetest.Sh("sleep 1; exit 33"))
	for range 3 {
		w.killKeeper(t, n)
		w.check(t)
	}
	if s := meanwhile.WaitExit(); !node.OrphanEnded(s, 33) {
		t.Errorf("a container whose keeper was killed ended with %d (%s), want 33", s.ExitCode, s.Reason)
	}
	later.Stop(60)
	if s := later.Status(); !node.OrphanEnded(s, 21) {
		t.Errorf("stopped under another keeper: %d (%s), want 21", s.ExitCode, s.Reason)
	}
	response, err := n.Runtime.Attach(nodetest.Context(t),
		&cri.AttachRequest{ContainerId: terminal.ID, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	var got nodetest.Buffer
	if _, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY, response.Url,
		remotecommand.StreamOptions{Stdin: strings.NewReader("go\n"), Stdout: &got, Tty: true}); err != nil {
		t.Errorf("attach to a terminal under another keeper: %v", err)
	}
	if s := terminal.WaitExit(); !node.OrphanEnded(s, 5) || !strings.Contains(terminal.Stdout(), "after") {
		t.Errorf("the container with a terminal: %d, %q", s.ExitCode, terminal.Log())
	}
	fresh := p.Run(nodetest.Sh("echo fresh; exit 4"))
	if s := fresh.WaitExit(); s.ExitCode != 4 || fresh.Stdout() != "fresh\n" {
		t.Errorf("a container after it: %d, %q", s.ExitCode, fresh.Log())
	}
	nothingLeft(t, n)
}

// Without a service manager that keeps descriptors, both that are killed at once take exit codes and output with them:
// how much is counted, and no failure (docs/reliability.md).
func TestKillingBothLeavesNothing(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	r := chance(t)
	p := nodetest.RunPod(t, n)
	quiet := p.Run()
	pid, err := n.ContainerPID(quiet.ID)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		brief := startChurn(t, n, 2)
		brief.orphans.Store(true)
		brief.lossy.Store(true)
		time.Sleep(time.Duration(200+r.Intn(500)) * time.Millisecond)
		brief.stop()
		count(t).add(tally.Rounds, 1)
		if err := n.KillKeeper(); err != nil {
			t.Log(err)
		}
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		// A pod that was on its way when nothing was in escrow may end otherwise than it would have.
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		brief.wg.Wait()
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("a quiet container did not outlive both: %v", err)
	}
	if s := quiet.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("it is %v (%s)", s.State, s.Reason)
	}
	quiet.Stop(0)
	if s := quiet.WaitExit(); s.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("after stop it is %v", s.State)
	}
	nothingLeft(t, n)
}

func TestAnUpgradeOfTheKeeperUnderLoadLosesNothing(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	response, err := n.Runtime.Exec(nodetest.Context(t), &cri.ExecRequest{
		ContainerId: w.ID, Cmd: []string{"sh", "-c", "while read x; do echo got $x; done; exit 9"}, Stdin: true, Stdout: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	in, writer := io.Pipe()
	var got nodetest.Buffer
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	defer cancel()
	go func() {
		code, err := nodetest.Stream(ctx, nodetest.SPDY, response.Url, remotecommand.StreamOptions{Stdin: in, Stdout: &got})
		ended <- end{code, err}
	}()
	// Fast output: pipes are full all the time.
	fast := p.Run(nodetest.Sh("seq 1 400000; exit 6"))
	pods := startChurn(t, n, 2)
	pid, ok := n.KeeperPID()
	if !ok {
		t.Fatal("no keeper")
	}
	for i := range 10 {
		if _, err := fmt.Fprintln(writer, i); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond)
		nodetest.Eventually(t, 10*time.Second, "the keeper answers", func() error {
			if now, ok := n.KeeperPID(); !ok || now != pid {
				return fmt.Errorf("PID %d, %v; was %d", now, ok, pid)
			}
			return nil
		})
	}
	pods.finish(t)
	w.check(t)
	writer.Close()
	if e := <-ended; e.err != nil || e.code != 9 {
		t.Errorf("the open exec ended with %d, %v, want 9", e.code, e.err)
	}
	for i := range 10 {
		if !strings.Contains(got.String(), fmt.Sprintf("got %d\n", i)) {
			t.Errorf("the open exec lacks the answer to %d: %q", i, got.String())
		}
	}
	if s := fast.WaitExit(); s.ExitCode != 6 {
		t.Errorf("the fast writer ended with %d", s.ExitCode)
	}
	nodetest.Eventually(t, 20*time.Second, "all of the fast writer's lines are there", func() error {
		if lines := bytes.Count([]byte(fast.Stdout()), []byte("\n")); lines != 400000 {
			return fmt.Errorf("%d lines", lines)
		}
		return nil
	})
	nothingLeft(t, n)
}

func TestARebootedNodeKnowsWhatRan(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	var pods []*nodetest.Pod
	for range 3 {
		pods = append(pods, nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode(len(pods) % 2)}
		}))
	}
	running, created, exited := pods[0].Run(), pods[1].Create(), pods[2].Run(nodetest.Sh("exit 11"))
	exited.WaitExit()
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("after a reboot a pod is %v", s.State)
		}
	}
	if s := running.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.FinishedAt == 0 ||
		s.Reason == "Completed" || s.ExitCode == 0 {
		t.Errorf("what ran is %v, code %d (%s) at %d", s.State, s.ExitCode, s.Reason, s.FinishedAt)
	}
	if s := exited.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 11 {
		t.Errorf("what had ended is %v, %d", s.State, s.ExitCode)
	}
	if s := created.Status(); s.State == cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("what was created is %v", s.State)
	}
	if _, err := running.Exec(2, "true"); err == nil {
		t.Error("an exec in it runs")
	}
	for _, p := range pods {
		p.Stop()
		p.Remove()
	}
	if got := nodetest.RunPod(t, n).Output("echo again"); got != "again\n" {
		t.Errorf("a pod after the reboot: %q", got)
	}
	nothingLeft(t, n)
}
