package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/device"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/record"
)

// podConfig is a pod that has all parts a pod can have: namespaces of its own, an address, an init and limits.
func podConfig() *model.SandboxConfig {
	return &model.SandboxConfig{
		Metadata:  model.SandboxMetadata{Name: "web", Namespace: "default", UID: "1"},
		Hostname:  "web",
		Labels:    map[string]string{"app": "web"},
		DNS:       &model.DNS{Servers: []string{"10.0.0.10"}},
		Resources: &model.Resources{MemoryLimit: 64 << 20},
		Annotations: map[string]string{
			device.Annotation: `[{"container":"server","limits":{"example.com/disk":1}}]`,
		},
	}
}

// serverConfig is a container that has all that a container can have.
func serverConfig() *model.ContainerConfig {
	return &model.ContainerConfig{
		Metadata:  model.ContainerMetadata{Name: "server"},
		Image:     model.ImageSpec{Image: "web:1"},
		Resources: &model.Resources{DiskQuota: map[string]string{"/": "10m"}},
		Mounts: []model.Mount{
			{ContainerPath: "/image", Image: &model.ImageSpec{Image: "files:1"}},
			{ContainerPath: "/named", Volume: "data"},
		},
	}
}

// run has a pod with a running container.
func (n *memoryNode) run() (pod, container string) {
	n.t.Helper()
	pod, err := n.RunSandbox(n.t.Context(), podConfig(), "")
	if err != nil {
		n.t.Fatal(err)
	}
	if container, err = n.CreateContainer(n.t.Context(), pod, serverConfig()); err != nil {
		n.t.Fatal(err)
	}
	if err := n.StartContainer(n.t.Context(), container); err != nil {
		n.t.Fatal(err)
	}
	return pod, container
}

// status is that of a container.
func (n *memoryNode) status(id string) *model.ContainerStatus {
	n.t.Helper()
	st, err := n.ContainerStatus(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return st
}

// wantNothing makes sure that nothing is left, at the latest once what could not be removed was tried again.
func (n *memoryNode) wantNothing(after string) {
	n.t.Helper()
	var left []string
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if left = n.left(); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			n.t.Errorf("%s: left are %q", after, left)
			return
		}
	}
}

var errKilled = errors.New("berthd was killed")

// eachCall does something again and again, on a new node each time. In turn, each of the calls that act makes to others
// fails, before and after it has done what it was asked; with kill it does not return, and nothing else is done. Then
// check looks at what has become of it. It ends when each call has failed once, with a time when none has.
func eachCall(t *testing.T, kill bool, prepare func(*memoryNode), act func(*memoryNode) error,
	check func(n *memoryNode, what string, failed bool, err error)) {
	t.Helper()
	for _, late := range []bool{false, true} {
		for at := 1; !t.Failed(); at++ {
			n := newMemoryNode(t)
			prepare(n)
			n.host.fail(fault{at: at, late: late, kill: kill})
			err := errKilled
			acted := make(chan struct{})
			go func() {
				defer close(acted)
				err = act(n)
			}()
			<-acted
			failed := n.host.settle()
			check(n, fmt.Sprintf("call %d, late %v", at, late), failed, err)
			_ = n.Close()
			if !failed {
				if at < 2 { // a stop makes one, and those of the release come after it, at any time
					t.Error("no calls were made")
				}
				break
			}
		}
	}
}

// TestARunThatFailsLeavesNothing, whichever of its calls to the kernel, the network and the keeper fails, and whether
// or not it has done what it was asked.
func TestARunThatFailsLeavesNothing(t *testing.T) {
	var id string
	eachCall(t, false, func(*memoryNode) {}, func(n *memoryNode) (err error) {
		id, err = n.RunSandbox(t.Context(), podConfig(), "")
		return err
	}, func(n *memoryNode, what string, failed bool, err error) {
		if failed != errors.Is(err, errFault) {
			t.Errorf("%s: %v", what, err)
		}
		if err := n.RemoveSandbox(t.Context(), id); !failed && err != nil {
			t.Error(err)
		}
		n.wantNothing(what)
	})
}

// makeAhead makes a set of namespaces for the next pod.
func makeAhead(n *memoryNode) {
	n.t.Helper()
	if err := n.prepared.Add(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

// TestHostPortsAreThoseOfPodsThatRun, or may be started again, and have a network of their own: others have nothing
// that leads to them. Seen to fail where a pod that a reboot has stopped had none.
func TestHostPortsAreThoseOfPodsThatRun(t *testing.T) {
	n := newMemoryNode(t)
	tcp := model.PortMapping{Protocol: model.TCP, HostPort: 9001}
	for name, c := range map[string]struct {
		mapping model.PortMapping
		network model.NamespaceMode
		phase   record.SandboxPhase
		want    bool
	}{
		"a port":                  {tcp, "", record.SandboxReady, true},
		"another one":             {model.PortMapping{Protocol: model.TCP, HostPort: 9002}, "", record.SandboxReady, false},
		"of UDP":                  {model.PortMapping{Protocol: model.UDP, HostPort: 9001}, "", record.SandboxReady, false},
		"in the node's network":   {tcp, model.NamespaceNode, record.SandboxReady, false},
		"of a pod that has ended": {tcp, "", record.SandboxStopped, false},
		"after a reboot":          {tcp, "", record.SandboxBroken, true},
		"of a pod that goes":      {tcp, "", record.SandboxRemoving, true},
	} {
		cfg := podConfig()
		cfg.Metadata.Name, cfg.PortMappings, cfg.Security.Namespaces.Network = name, []model.PortMapping{c.mapping}, c.network
		if c.network != "" {
			cfg.Hostname = ""
		}
		id, err := n.RunSandbox(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := n.index.Sandbox(id)
		if err != nil {
			t.Fatal(err)
		}
		if c.phase == record.SandboxStopped {
			err = n.StopSandbox(t.Context(), id)
		} else {
			err = s.Update(record.Save, func(r *record.Sandbox) { r.Phase = c.phase })
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := n.IsHostPort(9001); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if err := n.RemoveSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoPodGetsThePortOfTheStreamingServer, whatever makes its network. Seen to fail where only the built-in bridge
// looked for who listens.
func TestNoPodGetsThePortOfTheStreamingServer(t *testing.T) {
	n := newMemoryNode(t)
	if err := n.ReserveStreams("127.0.0.1:9001"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mapping model.PortMapping
		refused bool
	}{
		"its port":                 {model.PortMapping{Protocol: model.TCP, ContainerPort: 1, HostPort: 9001}, true},
		"at its address":           {model.PortMapping{Protocol: model.TCP, HostPort: 9001, HostIP: "127.0.0.1"}, true},
		"at all addresses of IPv6": {model.PortMapping{Protocol: model.TCP, HostPort: 9001, HostIP: "::"}, true},
		"at another address":       {model.PortMapping{Protocol: model.TCP, HostPort: 9001, HostIP: "192.0.2.1"}, false},
		"of UDP":                   {model.PortMapping{Protocol: model.UDP, HostPort: 9001}, false},
		"another port":             {model.PortMapping{Protocol: model.TCP, ContainerPort: 9001, HostPort: 9002}, false},
	} {
		cfg := podConfig()
		cfg.Metadata.Name, cfg.PortMappings = name, []model.PortMapping{c.mapping}
		id, err := n.RunSandbox(t.Context(), cfg, "")
		if refused := errors.Is(err, errdefs.ErrFailedPrecondition); refused != c.refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if err := n.RemoveSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAPodGetsWhatWasMadeAhead, if that serves it. The memoryHost would have nothing else of the set.
func TestAPodGetsWhatWasMadeAhead(t *testing.T) {
	n := newMemoryNode(t)
	makeAhead(n)
	entries, err := os.ReadDir(n.dirs.StatePods())
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	for name, change := range map[string]func(*model.SandboxConfig){
		"in the node's network": func(c *model.SandboxConfig) { c.Security.Namespaces.Network = model.NamespaceNode },
		"in the node's IPC":     func(c *model.SandboxConfig) { c.Security.Namespaces.IPC = model.NamespaceNode },
		"with sysctls of interfaces": func(c *model.SandboxConfig) {
			c.Sysctls = map[string]string{"net.ipv4.conf.default.rp_filter": "2"}
		},
	} {
		cfg := podConfig()
		cfg.Metadata.Name, cfg.Metadata.UID = name, name
		change(cfg)
		if id, err := n.RunSandbox(t.Context(), cfg, ""); err != nil || id == entries[0].Name() {
			t.Errorf("a pod %s: %s, %v", name, id, err)
		}
	}
	first := podConfig()
	first.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80"}
	if id, err := n.RunSandbox(t.Context(), first, ""); err != nil || id != entries[0].Name() {
		t.Errorf("the first pod that it serves is %s, want %s: %v", id, entries[0].Name(), err)
	}
	second := podConfig()
	second.Metadata.Name, second.Metadata.UID = "second", "second"
	if id, err := n.RunSandbox(t.Context(), second, ""); err != nil || id == entries[0].Name() {
		t.Errorf("the second pod: %s, %v", id, err)
	}
}

// TestAFailedRunLeavesNothingOfWhatWasMadeAhead, whichever call fails, and neither does a pod that is refused.
func TestAFailedRunLeavesNothingOfWhatWasMadeAhead(t *testing.T) {
	var id string
	eachCall(t, false, makeAhead, func(n *memoryNode) (err error) {
		id, err = n.RunSandbox(t.Context(), podConfig(), "")
		return err
	}, func(n *memoryNode, what string, failed bool, err error) {
		if failed != errors.Is(err, errFault) {
			t.Errorf("%s: %v", what, err)
		}
		if err := n.RemoveSandbox(t.Context(), id); !failed && err != nil {
			t.Error(err)
		}
		n.wantNothing(what)
	})
	eachCall(t, false, func(*memoryNode) {}, func(n *memoryNode) error {
		return n.prepared.Add(t.Context())
	}, func(n *memoryNode, what string, failed bool, err error) {
		if failed != errors.Is(err, errFault) {
			t.Errorf("%s: %v", what, err)
		}
		if id, ok := n.prepared.Take(); ok != !failed {
			t.Errorf("%s: a set %q: %v", what, id, ok)
		} else if ok {
			n.prepared.Drop(t.Context(), id)
		}
		n.restart() // what could not be removed goes then
		n.wantNothing(what)
	})
	n := newMemoryNode(t)
	id, err := n.RunSandbox(t.Context(), podConfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	makeAhead(n)
	if _, err := n.RunSandbox(t.Context(), podConfig(), ""); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a pod that is there: %v", err)
	}
	if err := n.RemoveSandbox(t.Context(), id); err != nil {
		t.Error(err)
	}
	n.wantNothing("a pod that is refused")
}

// TestAStartThatFailsEndsTheContainer: it is told as exited, and can be removed.
func TestAStartThatFailsEndsTheContainer(t *testing.T) {
	var pod, id string
	eachCall(t, false, func(n *memoryNode) {
		var err error
		if pod, err = n.RunSandbox(t.Context(), podConfig(), ""); err != nil {
			t.Fatal(err)
		}
		if id, err = n.CreateContainer(t.Context(), pod, serverConfig()); err != nil {
			t.Fatal(err)
		}
	}, func(n *memoryNode) error {
		return n.StartContainer(t.Context(), id)
	}, func(n *memoryNode, what string, failed bool, err error) {
		st := n.status(id)
		switch {
		case failed && (!errors.Is(err, errFault) || st.State != model.ContainerExited ||
			st.Reason != model.ReasonStartError || st.ExitCode != 128):
			t.Errorf("%s: error %v, the container is %s: %s, %d", what, err, st.State, st.Reason, st.ExitCode)
		case !failed && (err != nil || st.State != model.ContainerRunning):
			t.Errorf("%s: error %v, the container is %s", what, err, st.State)
		}
		if n.host.running[id] != nil == failed {
			t.Errorf("%s: the keeper has the container: %v", what, !failed)
		}
		if err := n.RemoveSandbox(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		n.wantNothing(what)
	})
}

// TestARemovalThatFailsIsFinishedByTheNext, of a pod that runs.
func TestARemovalThatFailsIsFinishedByTheNext(t *testing.T) {
	var pod string
	eachCall(t, false, func(n *memoryNode) { pod, _ = n.run() }, func(n *memoryNode) error {
		return n.RemoveSandbox(t.Context(), pod)
	}, func(n *memoryNode, what string, failed bool, _ error) {
		if err := n.RemoveSandbox(t.Context(), pod); err != nil {
			t.Errorf("%s: again: %v", what, err)
		}
		n.wantNothing(what)
	})
}

// TestABerthdThatIsKilledLeavesNothing that its successor does not find and remove: wherever that is in the run of a
// pod, the creation, the start and the stop of a container, and their removal.
func TestABerthdThatIsKilledLeavesNothing(t *testing.T) {
	t.Run("a pod from nothing", func(t *testing.T) { testAKill(t, func(*memoryNode) {}) })
	t.Run("a pod of a set that was made ahead", func(t *testing.T) { testAKill(t, makeAhead) })
}

func testAKill(t *testing.T, prepare func(*memoryNode)) {
	eachCall(t, true, prepare, func(n *memoryNode) error {
		if err := n.prepared.Add(t.Context()); err != nil { // which is nobody's
			return err
		}
		ctx := t.Context()
		pod, err := n.RunSandbox(ctx, podConfig(), "")
		if err != nil {
			return err
		}
		id, err := n.CreateContainer(ctx, pod, serverConfig())
		if err != nil {
			return err
		}
		if err := n.StartContainer(ctx, id); err != nil {
			return err
		}
		if err := n.StopContainer(ctx, id, time.Minute); err != nil {
			return err
		}
		return n.RemoveSandbox(ctx, pod)
	}, func(n *memoryNode, what string, _ bool, _ error) {
		n.restart()
		list, err := n.ListSandboxes(t.Context(), model.SandboxFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range list {
			if err := n.RemoveSandbox(t.Context(), st.ID); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		n.wantNothing(what)
	})
}

func TestAContainerIsTheSameAfterARestart(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	before := n.status(id)
	n.restart()
	if after := n.status(id); after.State != model.ContainerRunning || !after.StartedAt.Equal(before.StartedAt) ||
		after.ImageID != before.ImageID {
		t.Errorf("it was %+v, and is %+v", before, after)
	}
	out, _, code, err := n.ExecSync(t.Context(), id, []string{"echo", "3"}, time.Minute)
	if err != nil || code != 3 || string(out) != "[echo 3]\n" {
		t.Errorf("exec: %q, %d, %v", out, code, err)
	}
	// What ends while berthd is away is told when it is there again.
	_ = n.Close()
	if err := n.cfg.Keeper.Signal(t.Context(), id, 15, false); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if st := n.status(id); st.State != model.ContainerExited || st.ExitCode != 143 || st.Reason != model.ReasonError {
		t.Errorf("it is %+v", st)
	}
}

func TestARebootEndsContainersAndPodsComeBack(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	created, err := n.CreateContainer(t.Context(), pod, &model.ContainerConfig{
		Metadata: model.ContainerMetadata{Name: "later"}, Image: model.ImageSpec{Image: "web:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.reboot()
	if st := n.status(id); st.State != model.ContainerExited || st.ExitCode != 255 || st.Reason != model.ReasonRebooted {
		t.Errorf("it is %+v", st)
	}
	root := n.dirs.Rootfs(&record.Sandbox{ID: pod, Config: podConfig()}, created)
	if st := n.status(created); st.State != model.ContainerCreated || !n.host.has("mount "+root) {
		t.Errorf("the created one is %s; there are %q", st.State, n.host.left())
	}
	st, err := n.SandboxStatus(t.Context(), pod)
	if err != nil || st.State != model.SandboxNotReady {
		t.Fatalf("the pod is %+v, %v", st, err)
	}
	ips := st.IPs
	if err := n.StartSandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	st, err = n.SandboxStatus(t.Context(), pod)
	if err != nil || st.State != model.SandboxReady || !slices.Equal(st.IPs, ips) || len(ips) == 0 {
		t.Errorf("the pod is %+v, %v; it had %v", st, err, ips)
	}
	if err := n.StartSandbox(t.Context(), pod); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a start of one that runs: %v", err)
	}
	if err := n.StartContainer(t.Context(), created); err != nil {
		t.Error(err)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("after the removal")
}

func TestAPodWithoutItsNamespacesIsNotReady(t *testing.T) {
	n := newMemoryNode(t)
	pod, _ := n.run()
	n.host.forget("namespace " + n.dirs.Namespaces(pod).Path(namespace.Network))
	s, err := n.index.Sandbox(pod)
	if err != nil {
		t.Fatal(err)
	}
	n.watch.CheckNamespaces(s)
	if st, err := n.SandboxStatus(t.Context(), pod); err != nil || st.State != model.SandboxNotReady {
		t.Errorf("the pod is %+v, %v", st, err)
	}
}

func TestAContainerThatEndsIsToldToThoseWhoFollow(t *testing.T) {
	n := newMemoryNode(t)
	events := n.Subscribe(t.Context())
	_, id := n.run()
	if err := n.StopContainer(t.Context(), id, time.Minute); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 5 {
		select {
		case e := <-events:
			seen = append(seen, fmt.Sprint(e.Type))
		case <-time.After(time.Minute):
			t.Fatalf("told was %v", seen)
		}
	}
	want := fmt.Sprint([]model.ContainerEventType{
		model.EventCreated, model.EventStarted, model.EventCreated, model.EventStarted, model.EventStopped,
	})
	if got := fmt.Sprint(seen); got != want {
		t.Errorf("told was %s, want %s", got, want)
	}
	if st := n.status(id); st.ExitCode != 143 || st.Reason != model.ReasonError || st.FinishedAt.IsZero() {
		t.Errorf("it is %+v", st)
	}
}

func TestAPausedContainerIsStopped(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	if err := n.PauseContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := n.ExecSync(t.Context(), id, []string{"x"}, 0); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an exec in a paused container: %v", err)
	}
	n.restart()
	if st := n.status(id); st.State != model.ContainerPaused {
		t.Errorf("after a restart it is %s", st.State)
	}
	if err := n.UnpauseContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := n.PauseContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := n.StopContainer(t.Context(), id, time.Minute); err != nil {
		t.Fatal(err)
	}
	if st := n.status(id); st.State != model.ContainerExited {
		t.Errorf("it is %s", st.State)
	}
}

// refreezing is a keeper whose container freezes one of its own cgroups again after each of the first signals.
type refreezing struct {
	memoryKeeper
	signals *atomic.Int32
}

func (k refreezing) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	if k.signals.Add(1) < 4 {
		return nil
	}
	return k.memoryKeeper.Signal(ctx, id, sig, all)
}

// TestAKilledContainerIsThawedUntilItEnds was seen to fail where the container was thawed once.
func TestAKilledContainerIsThawedUntilItEnds(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	n.cfg.Keeper = refreezing{memoryKeeper{n.host}, new(atomic.Int32)}
	n.restart()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.StopContainer(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if st := n.status(id); st.State != model.ContainerExited {
		t.Errorf("it is %s", st.State)
	}
}

func TestAnExecIsToldHowItWent(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	_, _, _, err := n.ExecSync(t.Context(), id, []string{"sleep", "x"}, time.Second)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that takes too long: %v", err)
	}
	if _, _, _, err := n.ExecSync(t.Context(), id, nil, 0); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one of nothing: %v", err)
	}
	var out bytes.Buffer
	opts := ExecOptions{Cmd: []string{"a", "7"}, Stdin: strings.NewReader("in"), Stdout: &out}
	if code, err := n.Exec(t.Context(), id, opts); err != nil || code != 7 || out.String() != "[a 7]\n" {
		t.Errorf("%q, %d, %v", &out, code, err)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := n.ExecSync(t.Context(), id, []string{"a"}, 0); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one in a container that has ended: %v", err)
	}
}

// stuckWriter takes nothing. It ends its client's call with the first write, and returns once that has ended.
type stuckWriter struct {
	cut   context.CancelFunc
	ended chan struct{}
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	w.cut()
	<-w.ended
	return len(p), nil
}

// TestAClientThatIsCutOffDoesNotGetTheSuccessOfItsCommand: the server may end a client's call after the command or the
// container has ended, and before the client has all of the output.
func TestAClientThatIsCutOffDoesNotGetTheSuccessOfItsCommand(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	ctx, cancel := context.WithCancel(t.Context())
	stuck := &stuckWriter{cut: cancel, ended: make(chan struct{})}
	code, err := n.Exec(ctx, id, ExecOptions{Cmd: []string{"a", "0"}, Stdout: stuck})
	close(stuck.ended)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an exec ends with exit code %d and the error %v", code, err)
	}
	container, err := n.index.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	<-container.Exited()
	if err := awaitAttached(ctx, container, make(chan struct{}), nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("an attach ends with the error %v", err)
	}
}

// TestAnAttachEndsThoughAKilledKeeperKeepsItsOutputOpen: a keeper that was killed and does not end has the pipe.
func TestAnAttachEndsThoughAKilledKeeperKeepsItsOutputOpen(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	container, err := n.index.Container(id)
	if err != nil {
		t.Fatal(err)
	}
	killed := make(chan struct{})
	close(killed)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := awaitAttached(ctx, container, make(chan struct{}), nil, killed); err != nil {
		t.Errorf("an attach goes on: %v", err)
	}
}

func TestAnAttachedClientSeesTheOutputToItsEnd(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := n.Attach(t.Context(), id, AttachOptions{Stdout: w})
		w.Close()
		ended <- err
	}()
	line := make([]byte, len("output\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "output\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := n.Attach(t.Context(), id, AttachOptions{Stdout: w}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("to one that has ended: %v", err)
	}
}

// attachOnce runs a container whose input is its first client's alone, and attaches a client whose input goes on. The
// client has got the first line of the output. ended gets the result of its attach.
func (n *memoryNode) attachOnce() (id string, ended chan error) {
	n.t.Helper()
	pod, err := n.RunSandbox(n.t.Context(), podConfig(), "")
	if err != nil {
		n.t.Fatal(err)
	}
	config := serverConfig()
	config.Stdin, config.StdinOnce = true, true
	if id, err = n.CreateContainer(n.t.Context(), pod, config); err != nil {
		n.t.Fatal(err)
	}
	if err := n.StartContainer(n.t.Context(), id); err != nil {
		n.t.Fatal(err)
	}
	_, ended = n.attach(id)
	return id, ended
}

// attach attaches a client with input that goes on, and waits for the first line of the output.
func (n *memoryNode) attach(id string) (typed *io.PipeWriter, ended chan error) {
	n.t.Helper()
	var stdin io.Reader
	stdin, typed = io.Pipe()
	n.t.Cleanup(func() { typed.Close() })
	r, w := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		err := n.Attach(n.t.Context(), id, AttachOptions{Stdin: stdin, Stdout: w})
		w.CloseWithError(err)
		ended <- err
	}()
	line := make([]byte, len("output\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "output\n" {
		n.t.Fatalf("the client gets %q: %v", line, err)
	}
	return typed, ended
}

// TestTheInputOfTheFirstClientEndsThoughItsKeeperWasKilled: the next keeper does not know whose the input was.
func TestTheInputOfTheFirstClientEndsThoughItsKeeperWasKilled(t *testing.T) {
	n := newMemoryNode(t)
	id, ended := n.attachOnce()
	memoryKeeper{n.host}.replaced()
	if err := <-ended; !errdefs.IsUnavailable(err) {
		t.Errorf("the attach ends with the error %v", err)
	}
	if _, err := (memoryKeeper{n.host}).Input(id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the container can still have input: %v", err)
	}
}

// TestALaterClientOfAnInputThatHasEndedGetsTheOutput, and what it sends is dropped. One that only sends is refused.
func TestALaterClientOfAnInputThatHasEndedGetsTheOutput(t *testing.T) {
	n := newMemoryNode(t)
	id, first := n.attachOnce()
	memoryKeeper{n.host}.replaced() // the first client goes
	<-first
	typed, later := n.attach(id)
	limit := time.AfterFunc(time.Minute, func() { typed.Close() })
	defer limit.Stop()
	if _, err := typed.Write([]byte("x")); err != nil {
		t.Errorf("what the later client sends is not taken: %v", err)
	}
	if err := n.Attach(t.Context(), id, AttachOptions{Stdin: strings.NewReader("x")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that has no output: %v", err)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-later; err != nil {
		t.Errorf("the later client's attach ends with the error %v", err)
	}
}

func TestAClientThatStartsAContainerIsAttachedFromTheBeginning(t *testing.T) {
	n := newMemoryNode(t)
	pod, err := n.RunSandbox(t.Context(), podConfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.CreateContainer(t.Context(), pod, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := n.StartAttached(t.Context(), id, TermSize{}, AttachOptions{Stdout: w})
		w.Close()
		ended <- err
	}()
	line := make([]byte, len("output\n"))
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "output\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := n.StartAttached(t.Context(), id, TermSize{}, AttachOptions{Stdout: w}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that runs: %v", err)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLimitsOfAPodAndItsContainersChange(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	update := &model.Resources{MemoryLimit: 32 << 20, DiskQuota: map[string]string{"/": "20m"}}
	if err := n.UpdateContainerResources(t.Context(), id, update, nil); err != nil {
		t.Fatal(err)
	}
	overhead, all := &model.Resources{MemoryLimit: 1 << 20}, &model.Resources{MemoryLimit: 96 << 20}
	if err := n.UpdateSandboxResources(t.Context(), pod, overhead, all); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if r := n.status(id).Resources; r == nil || r.MemoryLimit != 32<<20 {
		t.Errorf("the container's are %+v", r)
	}
	st, err := n.SandboxStatus(t.Context(), pod)
	if err != nil || st.Config.Resources.MemoryLimit != 96<<20 || st.Config.Overhead.MemoryLimit != 1<<20 {
		t.Errorf("the pod's are %+v, %+v, %v", st.Config.Resources, st.Config.Overhead, err)
	}
	n.host.fail(fault{at: 1})
	update = &model.Resources{MemoryLimit: 16 << 20}
	if err := n.UpdateContainerResources(t.Context(), id, update, nil); !errors.Is(err, errFault) {
		t.Errorf("an update that the keeper refuses: %v", err)
	}
	n.host.settle()
	if r := n.status(id).Resources; r.MemoryLimit != 32<<20 {
		t.Errorf("afterwards the container's are %+v", r)
	}
}

func TestWhatAPersonIsTold(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	if info, err := n.ContainerInfo(t.Context(), id); err != nil || info["runtimeSpec"] == nil {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := n.SandboxInfo(t.Context(), pod); err != nil || !slices.Contains(info["ips"].([]string), "10.0.0.2") {
		t.Errorf("%v, %v", info, err)
	}
	if spec, err := n.ContainerSpec(t.Context(), id); err != nil || !bytes.Contains(spec, []byte("ociVersion")) {
		t.Errorf("%s, %v", spec, err)
	}
	for filter, want := range map[*model.ContainerFilter]int{
		{}: 1, {ID: id[:13]}: 1, {SandboxID: pod}: 1, {ID: "none"}: 0,
		{States: []model.ContainerState{model.ContainerExited}}: 0, {Labels: map[string]string{"a": "b"}}: 0,
	} {
		if list, err := n.ListContainers(t.Context(), *filter); err != nil || len(list) != want {
			t.Errorf("%+v: %v, %v", *filter, list, err)
		}
	}
	for filter, want := range map[*model.SandboxFilter]int{
		{}: 1, {ID: pod[:13]}: 1, {ID: "none"}: 0, {State: model.SandboxNotReady}: 0,
		{Labels: map[string]string{"app": "web"}}: 1,
	} {
		if list, err := n.ListSandboxes(t.Context(), *filter); err != nil || len(list) != want {
			t.Errorf("%+v: %v, %v", *filter, list, err)
		}
	}
	for _, c := range n.Conditions(t.Context()) {
		if !c.Status {
			t.Errorf("%+v", c)
		}
	}
	n.host.fail(fault{at: 1})
	if c := n.Conditions(t.Context())[0]; c.Status || c.Reason != "KeeperNotReady" {
		t.Errorf("without a keeper: %+v", c)
	}
	n.host.settle()
	if list := n.Handlers(); len(list) != 2 || list[0].Name != "" || n.CgroupDriver() != "cgroupfs" {
		t.Errorf("%+v, %s", list, n.CgroupDriver())
	}
}

// The network sets the sysctls of a pod's interface again where it makes the interface again, also after a restart of
// berthd. Seen to fail without the sysctls in setUpNetwork, and without those in JoinedPod.
func TestTheNetworkKnowsTheSysctlsOfAPodsInterface(t *testing.T) {
	n := newMemoryNode(t)
	cfg := podConfig()
	cfg.Sysctls = map[string]string{"net.ipv4.conf.eth0.arp_ignore": "1", "net.ipv4.ip_unprivileged_port_start": "80"}
	pod, err := n.RunSandbox(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"net.ipv4.conf.eth0.arp_ignore": "1"}
	if got := n.host.sysctls[pod]; !maps.Equal(got, want) {
		t.Errorf("it is set up with %v, want %v", got, want)
	}
	n.restart()
	if got := n.host.sysctls[pod]; !maps.Equal(got, want) {
		t.Errorf("after a restart it has %v, want %v", got, want)
	}
}

func TestWhatDoesNotGoTogetherIsRefused(t *testing.T) {
	n := newMemoryNode(t)
	ctx := t.Context()
	if _, err := n.RunSandbox(ctx, podConfig(), "kata"); !errdefs.IsNotFound(err) {
		t.Errorf("a handler that is not there: %v", err)
	}
	user := podConfig()
	user.Security.Namespaces.User = &model.UserNamespace{Mode: model.NamespacePod}
	if _, err := n.RunSandbox(ctx, user, ""); err == nil {
		t.Error("a user namespace without mappings")
	}
	pod, id := n.run()
	if _, err := n.RunSandbox(ctx, podConfig(), ""); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second pod of one name: %v", err)
	}
	if _, err := n.CreateContainer(ctx, pod, serverConfig()); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second container of one name: %v", err)
	}
	missing := serverConfig()
	missing.Metadata.Name, missing.Image.Image = "other", "missing:1"
	if _, err := n.CreateContainer(ctx, pod, missing); !errdefs.IsNotFound(err) {
		t.Errorf("an image that is not there: %v", err)
	}
	if err := n.StartContainer(ctx, id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second start: %v", err)
	}
	// Seen to fail without the directory of the named volume, which stays out of the configuration.
	if st := n.status(id); st.Mounts()[1].HostPath == "" || filepath.Base(st.Mounts()[1].HostPath) != "data" ||
		st.Mounts()[0].HostPath != "" || st.Config.Mounts[1].HostPath != "" {
		t.Errorf("the status has mounts %+v", st.Mounts())
	}
	if err := n.RemoveVolume(ctx, "data"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "server") {
		t.Errorf("a volume that is used: %v", err)
	}
	if err := n.StopSandbox(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if err := n.StartSandbox(ctx, pod); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the start of a pod that was stopped: %v", err)
	}
	if _, err := n.CreateContainer(ctx, pod, missing); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a container in a pod that was stopped: %v", err)
	}
	err := errors.Join(n.RemoveSandbox(ctx, pod), n.RemoveSandbox(ctx, pod), n.StopSandbox(ctx, pod),
		n.RemoveContainer(ctx, id), n.StopContainer(ctx, id, 0))
	if err != nil {
		t.Errorf("what is gone is stopped and removed: %v", err)
	}
	if err := n.RemoveVolume(ctx, "data"); err != nil {
		t.Error(err)
	}
	n.wantNothing("after the removal")
}

func TestAProgramThatIsMissingIsTold(t *testing.T) {
	n := newMemoryNode(t)
	pod, err := n.RunSandbox(t.Context(), podConfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := serverConfig()
	cfg.Command = []string{"/missing"}
	id, err := n.CreateContainer(t.Context(), pod, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.StartContainer(t.Context(), id); !errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) {
		t.Errorf("the start: %v", err)
	}
	if st := n.status(id); st.State != model.ContainerExited || st.ExitCode != 127 || st.Reason != model.ReasonStartError {
		t.Errorf("it is %+v", st)
	}
}

// TestAPortOfThePodIsReached, of one that lives in the node's network: others need a namespace.
func TestAPortOfThePodIsReached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	n := newMemoryNode(t)
	cfg := podConfig()
	cfg.Security.Namespaces.Network = model.NamespaceNode
	pod, err := n.RunSandbox(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- n.PortForward(t.Context(), pod, int32(l.Addr().(*net.TCPAddr).Port), theirs) }()
	if _, err := ours.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(ours, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	ours.Close()
	<-ended
	if err := n.PortForward(t.Context(), pod, 0, theirs); !errdefs.IsInvalidArgument(err) {
		t.Errorf("port 0: %v", err)
	}
}

// halfOpen is a client that can learn that the pod has said all, and says nothing more itself.
type halfOpen struct {
	net.Conn
	told chan struct{} // closed by CloseWrite
}

func (c halfOpen) CloseWrite() error { close(c.told); return nil }

// TestAForwardedConnectionEndsSoonAfterThePodsSide: also where the client never ends its own. Seen to fail where the
// client's end is waited for.
func TestAForwardedConnectionEndsSoonAfterThePodsSide(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(conn, "all")
			conn.Close()
		}
	}()
	n := newMemoryNode(t)
	cfg := podConfig()
	cfg.Security.Namespaces.Network = model.NamespaceNode
	pod, err := n.RunSandbox(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	client := halfOpen{theirs, make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- n.PortForward(t.Context(), pod, int32(l.Addr().(*net.TCPAddr).Port), client) }()
	got := make([]byte, 3)
	if _, err := io.ReadFull(ours, got); err != nil || string(got) != "all" {
		t.Errorf("%q, %v", got, err)
	}
	<-client.told
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

// cuttable is a client that can be cut off.
type cuttable struct {
	halfOpen
	cut chan struct{} // closed by Reset
}

func (c cuttable) Reset() error { close(c.cut); return nil }

// TestAConnectionThatThePodResetsIsCutOffForTheClient, and is no error: one ends the whole port-forward of a client.
// Both a read and a write may be what learns it. Seen to fail where each error of the copying is one of the call.
func TestAConnectionThatThePodResetsIsCutOffForTheClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	}()
	n := newMemoryNode(t)
	cfg := podConfig()
	cfg.Security.Namespaces.Network = model.NamespaceNode
	pod, err := n.RunSandbox(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []int{1, 10, 1000} {
		ours, theirs := net.Pipe()
		client := cuttable{halfOpen{theirs, make(chan struct{})}, make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- n.PortForward(t.Context(), pod, int32(l.Addr().(*net.TCPAddr).Port), client) }()
		go func() {
			for range words { // until the connection ends
				if _, err := ours.Write([]byte("x")); err != nil {
					return
				}
			}
		}()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%d words: %v", words, err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it goes on")
		}
		select {
		case <-client.cut:
		default:
			t.Errorf("%d words: the client is not cut off", words)
		}
		ours.Close()
	}
}

// TestTheSpaceOfALargeLayerIsFreeAfterARemoval, of a container and of a pod: a kubelet measures the disk at once. Seen
// to fail without the wait in either call.
func TestTheSpaceOfALargeLayerIsFreeAfterARemoval(t *testing.T) {
	n := newMemoryNode(t)
	for name, remove := range map[string]func(pod, container string) error{
		"RemoveContainer":  func(_, id string) error { return n.RemoveContainer(t.Context(), id) },
		"RemovePodSandbox": func(pod, _ string) error { return n.RemoveSandbox(t.Context(), pod) },
	} {
		pod, id := n.run()
		upper := filepath.Join(n.dirs.Container(id), "upper")
		for i := range 3000 {
			dir := filepath.Join(upper, fmt.Sprint(i%10))
			if err := errors.Join(os.MkdirAll(dir, 0o700),
				os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := remove(pod, id); err != nil {
			t.Fatal(err)
		}
		left := 0
		err := filepath.WalkDir(n.dirs.Trash(), func(string, fs.DirEntry, error) error { left++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if left > 100 {
			t.Errorf("%s: %d files are left", name, left)
		}
		if err := n.RemoveSandbox(t.Context(), pod); err != nil {
			t.Error(err)
		}
		n.wantNothing(name)
	}
}

// TestWhatNobodyKnowsIsEnded: what the keeper runs and no record knows, and what a record that cannot be read has had.
func TestWhatNobodyKnowsIsEnded(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	_ = n.Close()
	for _, dir := range []string{n.containers.Path(id), n.pods.Path(pod)} {
		files, err := filepath.Glob(filepath.Join(dir, "*.json*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			if err := os.WriteFile(f, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.restart()
	n.wantNothing("after the restart")
}

// TestAStartThatTheKeeperReadsLateIsEnded: of a berthd that was killed, whose pod the next one has removed by then.
// Seen to fail where events of containers without a record are passed over.
func TestAStartThatTheKeeperReadsLateIsEnded(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	memoryKeeper{n.host}.start("stray")
	deadline := time.Now().Add(time.Minute)
	for slices.Contains(n.host.left(), "container stray") {
		if time.Now().After(deadline) {
			t.Fatal("it still runs")
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, own := range []string{pod, id} {
		if !slices.Contains(n.host.left(), "container "+own) {
			t.Errorf("container %s has a record, and was ended, too", own)
		}
	}
}

// TestAContainerThatTheKeeperStartsLateIsEnded: it was told as created after the restart, or as ended after a start
// that failed. Seen to fail when events of containers with a record were heeded for their ends alone.
func TestAContainerThatTheKeeperStartsLateIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		before func(n *memoryNode, id string) error
		ran    bool // its program has ended at once
		reason string
	}{
		"created": {before: func(*memoryNode, string) error { return nil }, reason: model.ReasonStartError},
		"created, and over": {
			before: func(*memoryNode, string) error { return nil }, ran: true, reason: model.ReasonCompleted,
		},
		"ended": {before: func(n *memoryNode, id string) error {
			return errors.Join(n.StartContainer(t.Context(), id), n.StopContainer(t.Context(), id, 0))
		}, reason: model.ReasonError},
	} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNode(t)
			pod, err := n.RunSandbox(t.Context(), podConfig(), "")
			if err != nil {
				t.Fatal(err)
			}
			id, err := n.CreateContainer(t.Context(), pod, serverConfig())
			if err == nil {
				err = c.before(n, id)
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.ran {
				memoryKeeper{n.host}.ran(id, 0)
			} else {
				memoryKeeper{n.host}.start(id)
			}
			ended := func() bool {
				n.host.mu.Lock()
				defer n.host.mu.Unlock()
				return n.host.running[id] == nil
			}
			for end := time.Now().Add(time.Minute); !ended() || n.status(id).State != model.ContainerExited; {
				if time.Now().After(end) {
					t.Fatalf("it is %s, and was ended: %v", n.status(id).State, ended())
				}
				time.Sleep(time.Millisecond)
			}
			if st := n.status(id); st.Reason != c.reason {
				t.Errorf("its reason is %s: %s", st.Reason, st.Message)
			}
			if err := n.StartContainer(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("its program may run once more: %v", err)
			}
			if err := n.RemoveSandbox(t.Context(), pod); err != nil {
				t.Error(err)
			}
			n.wantNothing(name)
		})
	}
}

// TestAContainerThatTheKeeperLosesHasEnded: its exit code is lost, and a stop of its pod does not wait for it. Seen to
// fail when only the next berthd found that out: the stop waited for the end of the container until its own deadline.
func TestAContainerThatTheKeeperLosesHasEnded(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	memoryKeeper{n.host}.lose(id)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := n.StopSandbox(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if st := n.status(id); st.State != model.ContainerExited || st.ExitCode != 255 || st.Reason != model.ReasonKeeperLost {
		t.Errorf("it is %s, with %d: %s", st.State, st.ExitCode, st.Reason)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("after its removal")
}

// TestAPodWhoseInitTheKeeperLosesIsNotReady: nothing of it runs any more, and a kubelet makes a new one. Seen to fail
// when only the next berthd found that out.
func TestAPodWhoseInitTheKeeperLosesIsNotReady(t *testing.T) {
	n := newMemoryNode(t)
	pod, _ := n.run()
	memoryKeeper{n.host}.lose(pod)
	s, err := n.index.Sandbox(pod)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); s.Record().Phase != record.SandboxBroken; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is %s", s.Record().Phase)
		}
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("after its removal")
}

// TestAContainerHasThePodsUserNamespace: its root file system and the pod's files are mapped as the pod's IDs are.
func TestAContainerHasThePodsUserNamespace(t *testing.T) {
	n := newMemoryNode(t)
	settings := n.cfg.Settings
	settings.Handlers = map[string]Handler{"runc": {Name: "runc", UserNamespaces: true}}
	settings.Default = "runc"
	n.ApplySettings(settings)
	mapped := func(host uint32) *model.UserNamespace {
		ids := []model.IDMapping{{HostID: host, Length: 65536}}
		return &model.UserNamespace{Mode: model.NamespacePod, UIDs: ids, GIDs: ids}
	}
	nodes := &model.UserNamespace{Mode: model.NamespaceNode}
	otherGIDs := mapped(200000)
	otherGIDs.GIDs = mapped(300000).GIDs
	for name, c := range map[string]struct {
		pod, container *model.UserNamespace
		refused        bool
	}{
		"none":                              {nil, nil, false},
		"the node's":                        {nodes, nodes, false},
		"the node's, said by the container": {nil, nodes, false},
		"the node's, said by the pod":       {nodes, nil, false},
		"the pod's":                         {mapped(200000), nil, false},
		"the pod's, said again":             {mapped(200000), mapped(200000), false},
		"the node's in a pod with one":      {mapped(200000), nodes, true},
		"one in a pod without":              {nil, mapped(200000), true},
		"one in a pod of the node's":        {nodes, mapped(200000), true},
		"another":                           {mapped(200000), mapped(300000), true},
		"other groups":                      {mapped(200000), otherGIDs, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podConfig()
			pod.Metadata.UID, pod.Annotations, pod.Security.Namespaces.User = name, nil, c.pod
			id, err := n.RunSandbox(t.Context(), pod, "")
			if err != nil {
				t.Fatal(err)
			}
			config := serverConfig()
			config.Mounts, config.Resources, config.Security.Namespaces.User = nil, nil, c.container
			_, err = n.CreateContainer(t.Context(), id, config)
			var field *model.FieldError
			switch {
			case !c.refused && err != nil:
				t.Error(err)
			case c.refused && (!errdefs.IsInvalidArgument(err) || !errors.As(err, &field) ||
				field.Field != model.FieldContainerUserNamespace):
				t.Errorf("it is not refused as it should: %v", err)
			}
		})
	}
}

// TestANodeThatMapsNoOwnersRefusesPodsWithUserNamespaces, and its status says of all handlers that they have none.
func TestANodeThatMapsNoOwnersRefusesPodsWithUserNamespaces(t *testing.T) {
	n := newMemoryNode(t)
	var refused error
	n.cfg.OwnersMapped = func() error { return refused }
	n.cfg.Handlers = map[string]Handler{"runc": {Name: "runc", UserNamespaces: true}, "old": {Name: "old"}}
	n.cfg.Default = "runc"
	n.restart()
	pod := podConfig()
	ids := []model.IDMapping{{HostID: 200000, Length: 65536}}
	pod.Security.Namespaces.User = &model.UserNamespace{Mode: model.NamespacePod, UIDs: ids, GIDs: ids}
	for _, can := range []bool{true, false} {
		if !can {
			refused = errors.New("the kernel is too old")
		}
		for _, h := range n.Handlers() {
			if want := can && h.Name != "old"; h.UserNamespaces != want {
				t.Errorf("the node can: %v; handler %q says %v", can, h.Name, h.UserNamespaces)
			}
		}
		pod.Metadata.UID = fmt.Sprint(can)
		_, err := n.RunSandbox(t.Context(), pod, "")
		if can && err != nil || !can && (!errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "no pods with user namespaces (hostUsers: false): the kernel is too old")) {
			t.Errorf("the node can: %v; a pod: %v", can, err)
		}
	}
}

// TestAPodKeepsItsRuntimeHandlerWhateverIsDefaultLater: what it has was made by that one. Seen to fail with the name
// that the pod was asked for with alone.
func TestAPodKeepsItsRuntimeHandlerWhateverIsDefaultLater(t *testing.T) {
	n := newMemoryNode(t)
	old, running := n.run()
	settings := n.cfg.Settings
	settings.Handlers = map[string]Handler{
		"runc": {Name: "runc"}, "crun": {Name: "crun", RuntimePath: "/crun", UserNamespaces: true},
	}
	settings.Default = "crun"
	n.ApplySettings(settings)
	config := serverConfig()
	config.Metadata.Name = "second"
	config.Mounts, config.Resources = nil, nil
	id, err := n.CreateContainer(t.Context(), old, config)
	if err != nil {
		t.Fatal(err)
	}
	handler := func(pod string) string {
		t.Helper()
		s, err := n.index.Sandbox(pod)
		if err != nil {
			t.Fatal(err)
		}
		r := s.Record()
		return r.RuntimeName()
	}
	if got := handler(old); got != "runc" {
		t.Errorf("the old pod's handler is %s", got)
	}
	podOf := podConfig()
	podOf.Metadata.Name, podOf.Annotations = "other", nil
	fresh, err := n.RunSandbox(t.Context(), podOf, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := handler(fresh); got != "crun" {
		t.Errorf("the new pod's handler is %s", got)
	}
	settings.Handlers = map[string]Handler{"crun": settings.Handlers["crun"]}
	n.ApplySettings(settings)
	third := serverConfig()
	third.Metadata.Name = "third"
	for what, call := range map[string]func() error{
		"second": func() error { return n.StartContainer(t.Context(), id) },
		"third":  func() error { _, err := n.CreateContainer(t.Context(), old, third); return err },
		record.ShortID(running): func() error {
			return n.UpdateContainerResources(t.Context(), running, &model.Resources{}, nil)
		},
	} {
		// With NotFound, the client would take the container for one that does not exist.
		err := call()
		if !errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), `"runc"`) {
			t.Errorf("a container %s whose handler is gone: %v", what, err)
		}
	}
	podOf.Metadata.Name = "unknown"
	if _, err := n.RunSandbox(t.Context(), podOf, "runc"); !errdefs.IsNotFound(err) {
		t.Errorf("a pod that asks for a handler that is gone: %v", err)
	}
	n.restart()
	if got := handler(old); got != "runc" {
		t.Errorf("after a restart the old pod's handler is %s", got)
	}
}

// TestAStartDoesNotWaitForTheRemovalOfLayers: a power failure may leave many, and the node is ready before they are
// gone. The end of berthd ends the removal. It was seen to fail where Reconcile collected the layers itself.
func TestAStartDoesNotWaitForTheRemovalOfLayers(t *testing.T) {
	n := newMemoryNode(t)
	pod, _ := n.run()
	_ = n.Close()
	images := n.cfg.Images.(memoryImages)
	began, ended := make(chan struct{}), make(chan struct{})
	images.collect = func(ctx context.Context) error {
		close(began)
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Error("the removal goes on after the end of berthd, or berthd waits for it")
		}
		return ctx.Err()
	}
	n.cfg.Images = images
	n.open()
	<-began
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	_ = n.Close()
	<-ended
}
