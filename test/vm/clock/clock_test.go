package clock

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// envMaySet allows tests to set the clock of this machine.
const envMaySet = "BERTH_TEST_SETS_CLOCK"

func TestMain(m *testing.M) { nodetest.Main(m) }

// settable skips where the clock may be somebody's, and puts it back at the end of the test.
func settable(t *testing.T) {
	t.Helper()
	if os.Getenv(envMaySet) == "" {
		t.Skipf("the clock of this machine may not be set (%s=1 allows it): make vm", envMaySet)
	}
	start := time.Now()
	t.Cleanup(func() { set(t, start.Add(time.Since(start))) }) // Go's own measure of what has passed is not set
}

// set sets the wall clock.
func set(t *testing.T, to time.Time) {
	t.Helper()
	tv := unix.NsecToTimeval(to.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		t.Fatalf("set the clock to %v: %v", to, err)
	}
}

// wall is the wall clock without Go's own reading beside it, by which times would be compared.
func wall() time.Time { return time.Now().Round(0) }

// outcome is how a call ended, and how long it took by a clock that nobody sets.
type outcome struct {
	err  error
	took time.Duration
	exec *cri.ExecSyncResponse
}

func begin(call func() (*cri.ExecSyncResponse, error)) chan outcome {
	done := make(chan outcome, 1)
	start := time.Now()
	go func() {
		response, err := call()
		done <- outcome{err: err, took: time.Since(start), exec: response}
	}()
	return done
}

// endless is what waits that should take seconds may take: much less than the clock is set by.
const endless = 4 * time.Minute

func end(t *testing.T, what string, done chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(endless):
		t.Fatalf("%s: it hangs", what)
		return outcome{}
	}
}

// TestTheClockIsSetForthAndBack by an hour, by a day, and to before 2020, while pods start and stop, execs run
// and reach their timeouts, images are pulled slowly or not at all for a while, the keeper is killed and berthd is:
// nothing hangs, nothing ends before its time, all is found again as it was, and clients are told times by which they
// can tell the older from the newer.
func TestTheClockIsSetForthAndBack(t *testing.T) {
	settable(t)
	n := nodetest.Start(t, node.Options{Tables: "[image]\ntimeout = \"5s\"\n"})
	stalls, err := registrytest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stalls.Close() })
	if err := stalls.HostsDir(n.HostsDir, "stalls.test"); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, n: n, stalls: stalls}
	w.pod = nodetest.RunPod(t, n)
	w.counter = w.pod.Run(nodetest.Sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"))
	w.counter.WaitLog("3\n")
	w.before = w.counter.Status()
	w.attempt()
	for _, step := range []struct {
		name string
		to   func() time.Time
	}{
		{"an hour forth", func() time.Time { return wall().Add(time.Hour) }},
		{"an hour back", func() time.Time { return wall().Add(-time.Hour) }},
		{"a day back", func() time.Time { return wall().Add(-24 * time.Hour) }},
		{"before 2020", func() time.Time { return time.Date(2001, 9, 9, 1, 46, 40, 0, time.UTC) }},
		{"forth again, and a day more", func() time.Time { return w.begun().Add(24 * time.Hour) }},
	} {
		start := time.Now()
		w.step(step.name, step.to)
		t.Logf("%s: %v", step.name, time.Since(start).Round(time.Second))
	}
	w.counts()
	for _, s := range []string{"spoilt", "without a record"} {
		if log, err := os.ReadFile(n.DaemonLog); err != nil || strings.Contains(string(log), s) {
			t.Errorf("the log says %q (%v)", s, err)
		}
	}
}

// world is what the clock is set under.
type world struct {
	*testing.T
	n       *node.Node
	stalls  *registrytest.Registry
	pod     *nodetest.Pod
	counter *nodetest.Container
	before  *cri.ContainerStatus // of the counter
	steps   int
	// The attempts of one pod, and those of one container in the counter's pod, oldest first.
	sandboxes, containers []string
}

// begun is when the counter was started.
func (w *world) begun() time.Time { return time.Unix(0, w.before.StartedAt) }

// step begins everything that takes its time, sets the clock, kills the keeper, waits for the ends, and kills berthd.
func (w *world) step(name string, to func() time.Time) {
	w.Helper()
	w.steps++
	const timeout = 8 * time.Second
	file := func(what string) string { return fmt.Sprintf("/%s%d", what, w.steps) }

	goes := begin(func() (*cri.ExecSyncResponse, error) {
		return w.counter.Exec(600,
			"sh", "-c", "touch "+file("goes")+"; until test -e "+file("go")+"; do sleep 0.05; done; echo done")
	})
	overdue := begin(func() (*cri.ExecSyncResponse, error) {
		return w.counter.Exec(int64(timeout.Seconds()), "sh", "-c", "touch "+file("overdue")+"; sleep 3000")
	})
	token, err := w.n.Runtime.Exec(nodetest.Context(w), &cri.ExecRequest{
		ContainerId: w.counter.ID, Cmd: []string{"echo", "token"}, Stdout: true,
	})
	if err != nil {
		w.Fatal(err)
	}
	stays := w.pod.Run(nodetest.Sh("trap '' TERM; echo ready; while :; do sleep 0.1; done"))
	stays.WaitLog("ready")
	ends := w.pod.Run(nodetest.Sh("until test -e /end; do sleep 0.05; done; exit 7"))
	endsPID, err := w.n.ContainerPID(ends.ID)
	if err != nil {
		w.Fatal(err)
	}
	pulls := map[string]chan outcome{"slow": w.pull(w.n.Registry, node.RegistryHost),
		"stalls": w.pull(w.stalls, "stalls.test")}
	nodetest.Eventually(w, time.Minute, "the execs run", func() error {
		response, err := w.counter.Exec(60, "ls", file("goes"), file("overdue"))
		if err == nil && response.ExitCode != 0 {
			err = fmt.Errorf("%s", response.Stderr)
		}
		return err
	})
	stop := begin(func() (*cri.ExecSyncResponse, error) {
		_, err := w.n.Runtime.StopContainer(nodetest.Context(w), &cri.StopContainerRequest{
			ContainerId: stays.ID, Timeout: int64(timeout.Seconds()),
		})
		return nil, err
	})

	set(w.T, to())
	from := wall()
	if err := w.n.KillKeeper(); err != nil {
		w.Fatal(err)
	}
	w.attempt()
	w.Log(name + ": " + w.churn())
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/end", endsPID), nil, 0o644); err != nil {
		w.Fatal(err)
	}
	w.counter.Sh("touch " + file("go"))
	if o := end(w.T, "an exec", goes); o.err != nil || string(o.exec.Stdout) != "done\n" {
		w.Errorf("%s: an exec ended with %v, %v", name, o.exec, o.err)
	}
	o := end(w.T, "an exec with a timeout", overdue)
	nodetest.WantCode(w, o.err, codes.DeadlineExceeded)
	if o.took < timeout {
		w.Errorf("%s: an exec with a timeout of %v ended after %v", name, timeout, o.took)
	}
	if o := end(w.T, "a stop", stop); o.err != nil || o.took < timeout {
		w.Errorf("%s: a stop with a grace of %v took %v: %v", name, timeout, o.took, o.err)
	}
	for what, done := range pulls {
		if o := end(w.T, "a pull that "+what, done); o.err != nil {
			w.Errorf("%s: the pull %s ended after %v: %v", name, what, o.took, o.err)
		}
	}
	var out nodetest.Buffer
	_, err = nodetest.Stream(nodetest.Context(w), nodetest.SPDY, token.Url, remotecommand.StreamOptions{Stdout: &out})
	if err != nil || out.String() != "token\n" {
		w.Errorf("%s: an exec by a URL from before says %q, %v", name, out.String(), err)
	}

	if err := w.n.Kill(); err != nil {
		w.Fatal(err)
	}
	if err := w.n.Restart(nodetest.Context(w)); err != nil {
		w.Fatal(err)
	}
	for what, c := range map[string]*nodetest.Container{"stopped": stays, "ended": ends} {
		s := c.WaitExit()
		if at := time.Unix(0, s.FinishedAt); at.Before(from) || at.After(wall()) {
			w.Errorf("%s: what has %s since %v has ended at %v", name, what, from, at)
		}
		if what == "ended" && !node.OrphanEnded(s, 7) {
			w.Errorf("%s: it ended with %d: %s", name, s.ExitCode, s.Reason)
		}
	}
	if s := w.counter.Status(); s.State != w.before.State || s.CreatedAt != w.before.CreatedAt ||
		s.StartedAt != w.before.StartedAt {
		w.Errorf("%s: the container that runs is %v, and was %v", name, s, w.before)
	}
	w.ordered(name)
	w.measured(name, from)
}

// pull begins to pull an image that takes its time: one registry sends slowly, the other stops once and waits
// for a second request.
func (w *world) pull(r *registrytest.Registry, host string) chan outcome {
	w.Helper()
	repo := fmt.Sprintf("step%d", w.steps)
	image, err := registrytest.Image(registrytest.Layer(registrytest.Random(int64(w.steps), "d", 4, 50_000)...))
	if err != nil {
		w.Fatal(err)
	}
	if err := r.Push(repo+":1", image); err != nil {
		w.Fatal(err)
	}
	f := registrytest.Faults{Path: "/" + repo + "/blobs/", BytesPerSecond: 40_000}
	if r == w.stalls {
		f = registrytest.Faults{Path: "/" + repo + "/blobs/", StallAfter: 10_000, Times: 1}
	}
	r.SetFaults(f)
	asked := len(r.Requests())
	done := begin(func() (*cri.ExecSyncResponse, error) {
		_, err := w.n.Images.PullImage(nodetest.Context(w),
			&cri.PullImageRequest{Image: &cri.ImageSpec{Image: host + "/" + repo + ":1"}})
		return nil, err
	})
	nodetest.Eventually(w, time.Minute, "the registry is asked", func() error {
		if len(r.Requests()) == asked {
			return fmt.Errorf("it has %d requests", asked)
		}
		return nil
	})
	return done
}

// churn is the life of a pod while the rest goes on.
func (w *world) churn() string {
	w.Helper()
	start, from := time.Now(), wall()
	p := nodetest.RunPod(w, w.n)
	s := p.Run(nodetest.Sh("exit 3")).WaitExit()
	if s.ExitCode != 3 {
		w.Errorf("a container ended with %d: %s", s.ExitCode, s.Reason)
	}
	last := from.UnixNano()
	for _, at := range []int64{p.Status().CreatedAt, s.CreatedAt, s.StartedAt, s.FinishedAt, wall().UnixNano()} {
		if at < last {
			w.Errorf("a pod was made at %v and its container at %v, which started at %v and ended at %v, after %v",
				p.Status().CreatedAt,
				s.CreatedAt, s.StartedAt, s.FinishedAt, from)
		}
		last = at
	}
	p.Remove()
	return fmt.Sprintf("a pod came and went in %v", time.Since(start).Round(time.Millisecond))
}

// attempt makes the next attempt of a pod that has stopped, and of a container that has ended, as a kubelet does.
func (w *world) attempt() {
	w.Helper()
	config := nodetest.PodConfig(w.n)
	config.Metadata = &cri.PodSandboxMetadata{Name: "again", Namespace: "test", Uid: "again",
		Attempt: uint32(len(w.sandboxes))}
	config.Labels = map[string]string{"again": ""}
	r, err := w.n.Runtime.RunPodSandbox(nodetest.Context(w), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		w.Fatal(err)
	}
	p := nodetest.Adopt(w, w.n, r.PodSandboxId, config)
	p.Stop()
	w.sandboxes = append(w.sandboxes, p.ID)
	c := w.pod.Run(nodetest.Sh("exit 0"), func(c *cri.ContainerConfig) {
		c.Metadata = &cri.ContainerMetadata{Name: "again", Attempt: uint32(len(w.containers))}
		c.Labels = map[string]string{"again": ""}
	})
	c.WaitExit()
	w.containers = append(w.containers, c.ID)
}

// ordered says that lists have the newest attempt first, and that creation times say so, too.
func (w *world) ordered(name string) {
	w.Helper()
	check := func(what string, want, ids []string, times []int64) {
		w.Helper()
		last := int64(math.MaxInt64)
		for i, id := range ids {
			if len(ids) != len(want) || id != want[len(want)-1-i] || times[i] >= last {
				w.Fatalf("%s: of %d attempts of a %s, number %d of the list was made at %v, after %v: %s; they are %v",
					name, len(want), what, i,
					times[i], last, id, want)
			}
			last = times[i]
		}
	}
	var ids []string
	var times []int64
	pods, err := w.n.Runtime.ListPodSandbox(nodetest.Context(w), &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"again": ""}}})
	if err != nil {
		w.Fatal(err)
	}
	for _, p := range pods.Items {
		ids, times = append(ids, p.Id), append(times, p.CreatedAt)
	}
	check("pod", w.sandboxes, ids, times)
	list, err := w.n.Runtime.ListContainers(nodetest.Context(w), &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"again": ""}}})
	if err != nil {
		w.Fatal(err)
	}
	ids, times = nil, nil
	for _, c := range list.Containers {
		ids, times = append(ids, c.Id), append(times, c.CreatedAt)
	}
	check("container", w.containers, ids, times)
}

// measured says that readings are of now, and no rate is more than the machine has processors.
func (w *world) measured(name string, from time.Time) {
	w.Helper()
	nodetest.Eventually(w, time.Minute, name+": the counter is measured", func() error {
		r, err := w.n.Runtime.ContainerStats(nodetest.Context(w), &cri.ContainerStatsRequest{ContainerId: w.counter.ID})
		if err != nil {
			return err
		}
		cpu, layer := r.GetStats().GetCpu(), r.GetStats().GetWritableLayer()
		for what, at := range map[string]int64{"processor time": cpu.GetTimestamp(), "its layer": layer.GetTimestamp()} {
			if at := time.Unix(0, at); at.Before(from) || at.After(wall()) {
				return fmt.Errorf("%s was read at %v, and the clock was set to %v", what, at, from)
			}
		}
		if rate := cpu.GetUsageNanoCores().GetValue(); rate == 0 || rate > 64e9 {
			return fmt.Errorf("it uses %d nanocores", rate)
		}
		return nil
	})
}

// counts says that no line of the counter is lost, and that each has a time.
func (w *world) counts() {
	w.Helper()
	want := 0
	for line := range strings.Lines(w.counter.Log()) {
		stamp, _, _ := strings.Cut(line, " ")
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
			w.Fatalf("%q: %v", line, err)
		}
	}
	for line := range strings.Lines(w.counter.Stdout()) {
		want++
		if got, err := strconv.Atoi(strings.TrimSpace(line)); err != nil || got != want {
			w.Fatalf("line %q follows %d", line, want-1)
		}
	}
	if want < 100 {
		w.Errorf("there are %d lines", want)
	}
}
