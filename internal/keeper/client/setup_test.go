package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/protocol"
)

// stageRuns counts how often the keeper's stage program is executed from now on: the file that stages are executed from
// is its own, sealed, and every execution of it is an event of fanotify(7).
func (n *node) stageRuns() (count func() int) {
	n.Helper()
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(n.pid()) + "/fd/*")
	if err != nil {
		n.Fatal(err)
	}
	watch, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		n.Fatalf("fanotify_init: %v", err)
	}
	marked := 0
	for _, fd := range fds {
		link, _ := os.Readlink(fd)
		// The overlay of the program, or a copy in memory, as libcontainer's exeseal makes it.
		if filepath.Base(link) != "berth-keeper" && !strings.HasPrefix(link, "/memfd:runc_cloned") {
			continue
		}
		if err := unix.FanotifyMark(watch, unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC, unix.AT_FDCWD, fd); err != nil {
			n.Fatalf("watch %s (%s): %v", fd, link, err)
		}
		marked++
	}
	if marked != 1 {
		n.Fatalf("%d files that stages may be executed from", marked)
	}
	n.Cleanup(func() { unix.Close(watch) })
	total := 0
	return func() int {
		const size = 24 // of struct fanotify_event_metadata
		buf := make([]byte, 4096)
		for {
			k, err := unix.Read(watch, buf)
			if err != nil || k <= 0 {
				return total
			}
			for at := 0; at+size <= k; at += size {
				total++
				if fd := int32(buf[at+16]) | int32(buf[at+17])<<8 | int32(buf[at+18])<<16 | int32(buf[at+19])<<24; fd >= 0 {
					unix.Close(int(fd))
				}
			}
		}
	}
}

func (n *node) setupOf(id string) keeper.Setup {
	n.Helper()
	st, err := n.client.Status(n.ctx(), id)
	if err != nil {
		n.Fatal(err)
	}
	return st.Setup
}

// TestSetupLibcontainerUsesNoStage: for a container that asks for it no stage is executed: not for its init process,
// whatever it needs, nor for its pod's init, nor for execs, nor after the keeper has been replaced or killed. Seen to
// fail with the choice not heeded in run; with the last stage kept for such containers; and with what a stage needs to
// join them in their records.
func TestSetupLibcontainerUsesNoStage(t *testing.T) {
	n := start(t)
	runs := n.stageRuns()
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	var list []string
	container := func(id string, edit func(*keeper.RunRequest)) {
		t.Helper()
		req := n.request(id, "sleep", "1000")
		req.Spec.Linux.Seccomp = profile()
		req.Setup = keeper.SetupLibcontainer
		edit(req)
		n.run(req)
		list = append(list, id)
	}
	check := func() {
		t.Helper()
		for _, id := range list {
			s := n.setupOf(id)
			if s.Engine != keeper.EngineLibcontainer || s.ExecEngine != keeper.EngineLibcontainer ||
				!strings.Contains(s.Reason, `setup = "libcontainer"`) || s.ExecReason == "" {
				t.Errorf("%s: %+v", id, s)
			}
			if id == "init" {
				continue
			}
			if out, exit := n.exec(id, 0, "echo", "in"); out != "in\n" || exit.ExitCode != 0 {
				t.Errorf("exec in %s: %q %+v", id, out, exit)
			}
		}
		if got := runs(); got != 0 {
			t.Errorf("a stage was executed %d times", got)
		}
	}
	n.reachable()
	container("plain", func(*keeper.RunRequest) {})
	container("unconfined", func(r *keeper.RunRequest) { r.Spec.Linux.Seccomp = nil })
	container("terminal", func(r *keeper.RunRequest) { r.Spec.Process.Terminal = true })
	container("mapped", func(r *keeper.RunRequest) {
		r.Spec.Linux.Namespaces = append(r.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		r.Spec.Linux.UIDMappings, r.Spec.Linux.GIDMappings = ids, ids
	})
	container("init", func(r *keeper.RunRequest) {
		r.Reaper, r.LogPath = true, ""
		r.Spec.Root.Path = filepath.Join(t.TempDir(), "init")
		if err := os.MkdirAll(filepath.Join(r.Spec.Root.Path, "dev"), 0o755); err != nil {
			t.Fatal(err)
		}
	})
	st, err := n.client.Status(n.ctx(), "init")
	if err != nil {
		t.Fatal(err)
	}
	container("member", func(r *keeper.RunRequest) {
		r.PodID = st.PodID
		r.Spec.Linux.Namespaces[0].Path = "/proc/" + strconv.Itoa(st.PID) + "/ns/pid"
	})
	check()
	if err := n.client.Upgrade(n.ctx()); err != nil {
		t.Fatal(err)
	}
	runs = n.stageRuns()
	check()
	pid := n.pid()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until("another keeper answers", func() bool { return n.pid() != pid })
	runs = n.stageRuns()
	check()
	// What has started in another way goes on in that way.
	n.setup = keeper.SetupStage
	req := n.request("staged", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	n.run(req)
	first := runs()
	if first == 0 {
		t.Error("no execution of a stage is seen at all")
	}
	n.exec("staged", 0, "true")
	if runs() == first {
		t.Error("no execution of a stage is seen in an exec")
	}
	if s := n.setupOf("staged"); s.Engine != keeper.EngineStage || s.ExecEngine != keeper.EngineStage || s.Reason == "" {
		t.Errorf("%+v", s)
	}
}

// TestTheReasonWhyLibcontainerSetsAContainerUpIsTold, where the stage could be asked and does not do it.
func TestTheReasonWhyLibcontainerSetsAContainerUpIsTold(t *testing.T) {
	n := start(t)
	n.setup = keeper.SetupStage
	n.reachable()
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	for want, tt := range map[string]struct {
		edit       func(*specs.Spec)
		engine     keeper.Engine
		execEngine keeper.Engine
	}{
		"hooks": {func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true", Args: []string{"true"}}}}
		}, keeper.EngineLibcontainerStage, keeper.EngineStage},
		// in the container, so that the last process before the program is libcontainer's
		"hooks before the start": {func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/true", Args: []string{"true"}}}}
		}, keeper.EngineLibcontainer, keeper.EngineLibcontainer},
		"a personality": {func(s *specs.Spec) {
			s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
		}, keeper.EngineLibcontainer, keeper.EngineLibcontainer},
		"a user namespace that is not its pod's, or mounts that the stage does not make in one": {func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
		}, keeper.EngineLibcontainerStage, keeper.EngineStage},
		"an I/O priority": {func(s *specs.Spec) {
			s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 4}
		}, keeper.EngineLibcontainer, keeper.EngineLibcontainer},
	} {
		req := n.request("a", "sleep", "1000")
		req.Spec.Linux.Seccomp = profile()
		tt.edit(req.Spec)
		res := n.run(req)
		if got := n.setupOf("a"); got != res.Setup || got.Engine != tt.engine || got.ExecEngine != tt.execEngine ||
			!strings.Contains(want, strings.TrimPrefix(got.Reason, "the container has ")) {
			t.Errorf("%s: %+v, and by the start %+v", want, got, res.Setup)
		}
		// Whatever runs them, execs have the filter: seen to fail where join is kept though libcontainer has loaded it.
		if out, _ := n.exec("a", 0, "grep", "Seccomp:", "/proc/self/status"); !strings.HasSuffix(out, "\t2\n") {
			t.Errorf("%s: an exec says %q", want, out)
		}
		n.delete("a")
	}
	req := n.request("a", "true")
	req.Setup = "runc"
	if _, err := n.client.Run(n.ctx(), req); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a setup of no kind: %v", err)
	}
	req.Setup, req.RuntimePath = keeper.SetupLibcontainer, "/usr/sbin/runc"
	if _, err := n.client.Run(n.ctx(), req); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a setup with an OCI runtime: %v", err)
	}
}

// TestAnExecByLibcontainerHasTheScoreOfAnUpdate, as one by the stage has.
func TestAnExecByLibcontainerHasTheScoreOfAnUpdate(t *testing.T) {
	n := start(t)
	for _, choice := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		id := string(choice)
		req := n.request(id, "sleep", "1000")
		score := 300
		req.Spec.Process.OOMScoreAdj, req.Setup = &score, choice
		n.run(req)
		for _, want := range []int{300, 400, 400, 500} {
			p := n.process("cat", "/proc/self/oom_score_adj")
			p.OOMScoreAdj = &want
			if got := strings.TrimSpace(n.execProcess(id, p)); got != strconv.Itoa(want) {
				t.Errorf("%s: %s, and not %d", choice, got, want)
			}
		}
	}
}

// olderKeeper answers as a keeper that knows nothing of RunRequest.Setup.
type olderKeeper struct {
	api.KeeperService
	ran chan string
}

func (*olderKeeper) Info(context.Context, *api.InfoRequest) (*api.InfoResponse, error) {
	return &api.InfoResponse{Version: "0.9", Pid: 4711, Generation: "old"}, nil
}

func (*olderKeeper) Adopted(context.Context, *api.Empty) (*api.Empty, error) {
	return &api.Empty{}, nil
}

func (k *olderKeeper) Run(_ context.Context, r *api.RunRequest) (*api.RunResponse, error) {
	k.ran <- r.Id
	return &api.RunResponse{Pid: 1}, nil
}

// TestAKeeperThatIsTooOldIsNotAsked: it would use the stage. Seen to fail without the check in Client.Run.
func TestAKeeperThatIsTooOldIsNotAsked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keeper")
	if err := protocol.MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	rpc, err := protocol.Listen("unix", dir, protocol.RPCSocket)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := protocol.Listen("unixpacket", dir, protocol.FDsSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer fds.Close()
	old := &olderKeeper{ran: make(chan string, 2)}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	api.RegisterKeeperService(server, old)
	go func() { _ = server.Serve(context.Background(), rpc) }()
	go func() {
		for {
			c, err := fds.AcceptUnix()
			if errors.Is(err, net.ErrClosed) || err != nil {
				return
			}
			conn := protocol.NewConn(c)
			if _, err := conn.Receive(); err == nil {
				_ = conn.Send(&protocol.Packet{Kind: protocol.Welcome, Generation: "old"})
			}
		}
	}()
	client, err := keeper.Connect(t.Context(), keeper.Config{Dir: dir, NoEscrow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Run(t.Context(), &keeper.RunRequest{ID: "a", Spec: &specs.Spec{}, Setup: keeper.SetupLibcontainer})
	if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "0.9") ||
		!strings.Contains(err.Error(), "reload") {
		t.Errorf("%v", err)
	}
	if len(old.ran) > 0 {
		t.Error("it was asked")
	}
	for _, choice := range []keeper.SetupChoice{"", keeper.SetupStage} {
		if _, err := client.Run(t.Context(), &keeper.RunRequest{ID: "b", Spec: &specs.Spec{}, Setup: choice}); err != nil ||
			<-old.ran != "b" {
			t.Errorf("what it knows is not asked of it: %v", err)
		}
	}
}
