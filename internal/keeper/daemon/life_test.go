package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	host "berth/test/node"
)

func TestAContainersLife(t *testing.T) {
	n := start(t)
	ctx, cancel := context.WithCancel(n.ctx())
	defer cancel()
	var mu sync.Mutex
	var told []string
	watched := make(chan error, 1)
	go func() {
		watched <- n.client.Watch(ctx, func(e keeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s %s %t %t", e.Status.ID, e.Status.State, e.Status.LogDone, e.Gone))
		})
	}()
	has := func(event string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(strings.Join(told, "\n"), event)
		}
	}
	res := n.run(n.shell("c", "echo begins; read x; echo speaks >&2; exit 3"))
	if res.Setup.Engine != engineName || res.PID == 0 || len(res.Phases) == 0 {
		t.Errorf("started as %+v", res)
	}
	n.run(n.shell("other", "exec sleep 1000"))
	n.until("the run is told", has("other running false false"))
	st := n.ended("c")
	if st.ExitCode != 3 || st.Lost || st.OOMKilled || st.Orphan || st.PodID != "pod" ||
		st.FinishedAt.Before(st.StartedAt) {
		t.Errorf("ended as %+v", st)
	}
	if got := n.output("c"); got != "begins\nspeaks\n" && got != "speaks\nbegins\n" {
		t.Errorf("log %q", got)
	}
	n.until("the end is told", has("c exited true false"))
	if err := n.client.Signal(n.ctx(), "c", unix.SIGTERM, false); err != nil {
		t.Errorf("a signal after the end: %v", err)
	}
	info, err := n.client.Info(n.ctx())
	if err != nil || info.Version != "1.2.3" || info.PID != os.Getpid() || info.Containers != 2 ||
		info.Counts.Holders != 1 {
		t.Errorf("info %+v, %v", info, err)
	}
	for range 2 {
		if err := n.client.Delete(n.ctx(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	n.until("the removal is told", has("c  false true"))
	if _, err := n.client.Status(n.ctx(), "c"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("status after the removal: %v", err)
	}
	left, _ := filepath.Glob(n.dir + "/*/c*")
	if !n.engine.has("destroy c") || len(left) > 0 {
		t.Errorf("left of the container: %v", left)
	}
	if list, err := n.client.List(n.ctx()); err != nil || len(list) != 1 || list[0].ID != "other" {
		t.Errorf("list %+v, %v", list, err)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}

// TestARunThatIsRefused: nothing of it is left.
func TestARunThatIsRefused(t *testing.T) {
	n := start(t)
	n.run(n.shell("twice", "exec sleep 1000"))
	for name, test := range map[string]struct {
		change func(*keeper.RunRequest)
		want   error
	}{
		"an ID that is no file name": {func(r *keeper.RunRequest) { r.ID = "a/b" }, errdefs.ErrInvalidArgument},
		"no process":                 {func(r *keeper.RunRequest) { r.Spec.Process = nil }, errdefs.ErrInvalidArgument},
		"a relative root":            {func(r *keeper.RunRequest) { r.Spec.Root.Path = "x" }, errdefs.ErrInvalidArgument},
		"a relative log":             {func(r *keeper.RunRequest) { r.LogPath = "x" }, errdefs.ErrInvalidArgument},
		"a relative runtime":         {func(r *keeper.RunRequest) { r.RuntimePath = "x" }, errdefs.ErrInvalidArgument},
		"relative images":            {func(r *keeper.RunRequest) { r.Restore = "x" }, errdefs.ErrInvalidArgument},
		"a restore by a runtime": {func(r *keeper.RunRequest) { r.Restore, r.RuntimePath = "/x", "/x" },
			errdefs.ErrNotImplemented},
		"an unknown setup": {func(r *keeper.RunRequest) { r.Setup = "x" }, errdefs.ErrInvalidArgument},
		"a runtime's setup": {func(r *keeper.RunRequest) { r.Setup, r.RuntimePath = "stage", "/x" },
			errdefs.ErrInvalidArgument},
		"an ID that is used": {func(r *keeper.RunRequest) { r.ID = "twice" }, errdefs.ErrAlreadyExists},
	} {
		req := n.shell("c", "exit 0")
		test.change(req)
		if _, err := n.client.Run(n.ctx(), req); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if n.engine.has("start c") {
		t.Error("an engine was asked to start what is refused")
	}
}

// TestAStartThatFails: the container is as if it had never been, whichever part fails.
func TestAStartThatFails(t *testing.T) {
	for _, at := range []string{"start c", "register c", "begin c"} {
		t.Run(at, func(t *testing.T) {
			n := start(t)
			n.engine.failAt(at, errors.New(`exec: "x": executable file not found in $PATH`))
			req := n.shell("c", "exit 0")
			req.Stdin, req.Reaper = true, at == "begin c"
			var missing *keeper.StartError
			if _, err := n.client.Run(n.ctx(), req); !errors.As(err, &missing) || missing.ExitCode != 127 {
				t.Errorf("start: %v", err)
			}
			if _, err := n.client.Status(n.ctx(), "c"); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("status: %v", err)
			}
			left, _ := filepath.Glob(n.dir + "/*/c*")
			cgroups, _ := filepath.Glob(n.engine.cgroups + "/*")
			if len(left)+len(cgroups) > 0 {
				t.Errorf("left: %v %v", left, cgroups)
			}
			n.engine.failAt(at, nil)
			n.run(n.shell("c", "echo again; exit 0"))
			if st := n.ended("c"); st.ExitCode != 0 || n.output("c") != "again\n" {
				t.Errorf("%+v, log %q", st, n.output("c"))
			}
		})
	}
	t.Run("the log cannot be written", func(t *testing.T) {
		n := start(t)
		req := n.shell("c", "echo lost; exit 4")
		req.LogPath = "/proc/no/such/file"
		n.run(req)
		if st := n.ended("c"); st.ExitCode != 4 { // a disk that fails keeps no container from running
			t.Errorf("%+v", st)
		}
	})
}

func TestSignals(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"))
	n.until("it is ready", func() bool { return n.output("c") == "ready\n" })
	for sig, want := range map[syscall.Signal]error{0: errdefs.ErrInvalidArgument, 65: errdefs.ErrInvalidArgument} {
		if err := n.client.Signal(n.ctx(), "c", sig, false); !errors.Is(err, want) {
			t.Errorf("signal %d: %v", sig, err)
		}
	}
	if err := n.client.Signal(n.ctx(), "none", unix.SIGTERM, false); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("a container that is not there: %v", err)
	}
	if err := n.client.Signal(n.ctx(), "c", unix.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("c"); st.ExitCode != 9 {
		t.Errorf("%+v", st)
	}
	n.run(n.shell("k", "exec sleep 1000"))
	if err := os.WriteFile(filepath.Join(n.engine.cgroups, "k", "memory.events"), []byte("oom_kill 1\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.client.Signal(n.ctx(), "k", unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("k"); st.ExitCode != 137 || !st.OOMKilled {
		t.Errorf("killed for want of memory: %+v", st)
	}
	// The kernel has killed a child, and the init process says so with a code of its own, or makes do without it.
	for code, want := range map[int]bool{3: true, 0: false} {
		id := fmt.Sprintf("w%d", code)
		n.run(n.shell(id, fmt.Sprintf("trap 'exit %d' TERM; echo ready; while :; do sleep 0.01; done", code)))
		n.until("it is ready", func() bool { return n.output(id) == "ready\n" })
		if err := os.WriteFile(filepath.Join(n.engine.cgroups, id, "memory.events"), []byte("oom_kill 1\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.client.Signal(n.ctx(), id, unix.SIGTERM, false); err != nil {
			t.Fatal(err)
		}
		if st := n.ended(id); st.ExitCode != code || st.OOMKilled != want {
			t.Errorf("a child was killed for want of memory, and it ended with %d: %+v", code, st)
		}
	}
}

func TestExecs(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	if got, exit := read(t, n.exec("c", "e", "echo out; echo err >&2; exit 6", 0)), n.exit("c",
		"e"); got != "out\nerr\n" ||
		exit.ExitCode != 6 {
		t.Errorf("%q, %+v", got, exit)
	}
	if again := n.exit("c", "e"); again.ExitCode != 6 {
		t.Errorf("asked again: %+v", again)
	}
	n.exec("c", "slow", "exec sleep 1000", 30*time.Millisecond)
	if exit := n.exit("c", "slow"); !exit.TimedOut || exit.ExitCode != 137 {
		t.Errorf("beyond its time: %+v", exit)
	}
	n.exec("c", "long", "exec sleep 1000", 0)
	if err := n.client.KillExec(n.ctx(), "c", "long"); err != nil {
		t.Fatal(err)
	}
	if exit := n.exit("c", "long"); exit.TimedOut || exit.ExitCode != 137 {
		t.Errorf("killed: %+v", exit)
	}
	request := func(container, exec string) *keeper.ExecRequest {
		return &keeper.ExecRequest{ContainerID: container, ExecID: exec, Process: &specs.Process{Args: []string{"true"}}}
	}
	if _, err := n.client.WaitExec(n.ctx(), "c", "none"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("wait for none: %v", err)
	}
	for _, test := range []struct {
		container, exec string
		want            error
	}{
		{"none", "x", errdefs.ErrNotFound}, {"c", "a/b", errdefs.ErrInvalidArgument}, {"c", "e", errdefs.ErrAlreadyExists},
	} {
		if _, err := n.client.Exec(n.ctx(), request(test.container, test.exec)); !errors.Is(err, test.want) {
			t.Errorf("exec %s in %s: %v, want %v", test.exec, test.container, err, test.want)
		}
	}
	n.engine.failAt("begin c", errors.New("exec /x: permission denied"))
	var failed *keeper.StartError
	if _, err := n.client.Exec(n.ctx(), request("c", "f")); !errors.As(err, &failed) || failed.ExitCode != 126 {
		t.Errorf("a program that may not be executed: %v", err)
	}
	n.engine.failAt("begin c", nil)
	if counts := n.server.counts(); counts.Execs != 3 {
		t.Errorf("%d execs are known", counts.Execs)
	}
	last := n.exec("c", "last", "exec sleep 1000", 0)
	if err := n.client.Signal(n.ctx(), "c", unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	n.ended("c")
	if _, err := n.client.Exec(n.ctx(), request("c", "late")); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("an exec in a container that has ended: %v", err)
	}
	if err := n.client.Delete(n.ctx(), "c"); err != nil { // ends what no PID namespace has ended
		t.Fatal(err)
	}
	if got := read(t, last); got != "" {
		t.Errorf("%q", got)
	}
}

// TestAnExecWhoseCallerHasGone: it is ended, and its program does not begin.
func TestAnExecWhoseCallerHasGone(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	ctx, cancel := context.WithCancel(t.Context())
	n.engine.failAt("register c", nil)
	begun := filepath.Join(t.TempDir(), "begun")
	held := make(chan struct{})
	n.engine.meanwhile("register c", func() { cancel(); <-held })
	done := make(chan error, 1)
	go func() {
		_, err := n.client.Exec(ctx, &keeper.ExecRequest{
			ContainerID: "c", ExecID: "e", Process: &specs.Process{Args: []string{"touch", begun}},
		})
		done <- err
	}()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("exec: %v", err)
	}
	n.until("the keeper has been told", func() bool {
		p, err := n.server.getExec(execID("c", "e"))
		if err != nil {
			return true
		}
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		return p.killed
	})
	close(held)
	n.until("it is forgotten", func() bool { _, err := n.server.getExec(execID("c", "e")); return err != nil })
	if _, err := os.Stat(begun); err == nil {
		t.Error("its program has begun")
	}
}

func TestTerminals(t *testing.T) {
	n := start(t)
	if master, slave, err := terminal(); err != nil {
		t.Skip("this machine has no terminals for ordinary users: ", err)
	} else {
		unix.Close(master)
		slave.Close()
	}
	req := n.shell("c", "read x; echo got $x; exec sleep 1000")
	req.Stdin, req.Spec.Process.Terminal = true, true
	n.run(req)
	in, err := n.client.Input("c")
	if err != nil || !in.Terminal {
		t.Fatalf("input %+v, %v", in, err)
	}
	defer in.File.Close()
	if _, err := in.File.WriteString("word\n"); err != nil {
		t.Fatal(err)
	}
	n.until("it has answered", func() bool { return strings.Contains(n.output("c"), "got word") })
	res, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
		ContainerID: "c", ExecID: "e", Width: 100, Height: 30,
		Process: &specs.Process{Args: []string{"sh", "-c", "read x; exit $x"}, Terminal: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Console.Close()
	if _, err := res.Console.WriteString("7\n"); err != nil {
		t.Fatal(err)
	}
	if exit := n.exit("c", "e"); exit.ExitCode != 7 {
		t.Errorf("%+v", exit)
	}
}

func TestInputAndAttachedClients(t *testing.T) {
	n := start(t)
	req := n.shell("c", "exec cat")
	req.Stdin, req.StdinOnce = true, true
	n.run(req)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	attach := &keeper.AttachRequest{ContainerID: "c", AttachID: "a", Stdout: w, Stdin: true}
	for range 2 { // the same call made again
		if err := n.client.Attach(n.ctx(), attach); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	bad := &keeper.AttachRequest{ContainerID: "c", AttachID: "b", SpillDir: "x"}
	if err := n.client.Attach(n.ctx(), bad); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a relative directory: %v", err)
	}
	in, err := n.client.Input("c")
	if err != nil || in.Terminal {
		t.Fatalf("input %+v, %v", in, err)
	}
	if _, err := in.File.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	n.until("it is in the log", func() bool { return n.output("c") == "one\n" })
	if err := os.Rename(n.logPath("c"), n.logPath("old")); err != nil {
		t.Fatal(err)
	}
	if err := n.client.ReopenLog(n.ctx(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := in.File.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	in.File.Close()
	n.until("it is in the new log", func() bool { return n.output("c") == "two\n" })
	if err := n.client.Detach(n.ctx(), "c", "unknown"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("a client that is not attached: %v", err)
	}
	// The log is written first, and what the client has not got when it detaches is not for it.
	want := "one\ntwo\n"
	got := make([]byte, len(want))
	if err := r.SetReadDeadline(time.Now().Add(host.Patience(20 * time.Second))); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("the client has read %q, %v", got[:n], err)
	}
	// It brought the input, which was for one client.
	if err := n.client.Detach(n.ctx(), "c", "a"); err != nil {
		t.Fatal(err)
	}
	if rest := read(t, r); rest != "" {
		t.Errorf("the client has read %q, too", rest)
	}
	if err := n.client.CloseStdin(n.ctx(), "c"); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("c"); st.ExitCode != 0 {
		t.Errorf("%+v", st)
	}
	attach.Stdout = nil
	if err := n.client.Attach(n.ctx(), attach); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("attach to a container that has ended: %v", err)
	}
	mute := n.shell("mute", "exec sleep 1000")
	mute.LogPath = ""
	n.run(mute)
	if err := n.client.ReopenLog(n.ctx(), "mute"); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("reopen no log: %v", err)
	}
}

// TestAClientThatGoes: what it attached is cut off once it does not come back, and what it has frozen is thawed.
func TestAClientThatGoes(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "while sleep 0.01; do echo x; done"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "c", AttachID: "a", Stdout: w}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	thaw, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	n.client.Close()
	n.connect()
	read(t, r) // to its end
	if n.frozen("c") {
		t.Error("the container is frozen")
	}
	if err := thaw(n.ctx()); err == nil {
		t.Error("the client that has gone thawed it")
	}
}

func TestPauseAndUpdate(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	for _, step := range []struct {
		do     func(context.Context, string) error
		paused bool
	}{{n.client.Pause, true}, {n.client.Resume, false}} {
		if err := step.do(n.ctx(), "c"); err != nil || n.status("c").Paused != step.paused {
			t.Errorf("paused %t, %v", n.status("c").Paused, err)
		}
	}
	limit := int64(5)
	res := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
	if err := n.client.Update(n.ctx(), "c", res); err != nil || *n.engine.limit["c"].Pids.Limit != 5 {
		t.Errorf("update: %v", err)
	}
	n.engine.failAt("update c", errors.New("no"))
	if err := n.client.Update(n.ctx(), "c", res); err == nil || !strings.HasSuffix(err.Error(), ": no") {
		t.Errorf("an update that fails: %v", err)
	}
	if err := n.client.Pause(n.ctx(), "none"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("pause none: %v", err)
	}
	// A container that is paused is killed too.
	if err := errors.Join(n.client.Pause(n.ctx(), "c"), n.client.Signal(n.ctx(), "c", unix.SIGKILL, true)); err != nil {
		t.Fatal(err)
	}
	if err := n.client.Delete(n.ctx(), "c"); err != nil {
		t.Fatal(err)
	}
}

func (n *node) checkpoint(id string, timeout time.Duration) *keeper.CheckpointRequest {
	dir := n.TempDir()
	return &keeper.CheckpointRequest{ID: id, Images: filepath.Join(dir, "images"), Work: filepath.Join(dir, "work"),
		Timeout: timeout}
}

func (n *node) frozen(id string) bool { return n.status(id).Paused }

func TestCheckpoints(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	req := n.checkpoint("c", time.Minute)
	thaw, err := n.client.Checkpoint(n.ctx(), req)
	if err != nil || !n.frozen("c") {
		t.Fatalf("frozen %t, %v", n.frozen("c"), err)
	}
	if _, err := os.Stat(filepath.Join(req.Images, "pages")); err != nil {
		t.Error(err)
	}
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute)); !errors.Is(err,
		errdefs.ErrFailedPrecondition) {
		t.Errorf("a second one meanwhile: %v", err)
	}
	if err := thaw(n.ctx()); err != nil || n.frozen("c") {
		t.Errorf("frozen %t, %v", n.frozen("c"), err)
	}
	if err := thaw(n.ctx()); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("thawed twice: %v", err)
	}
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", 3*time.Second)); err != nil {
		t.Fatal(err)
	}
	n.until("its time is over", func() bool { return !n.frozen("c") })
	n.engine.failAt("checkpoint c", errors.New("no"))
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute)); err == nil || n.frozen("c") {
		t.Errorf("one that fails: frozen %t, %v", n.frozen("c"), err)
	}
	for name, bad := range map[string]*keeper.CheckpointRequest{
		"relative": {ID: "c", Images: "x", Work: "/x", Timeout: time.Second}, "no time": n.checkpoint("c", 0),
	} {
		if _, err := n.client.Checkpoint(n.ctx(), bad); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("none", time.Second)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

// TestAContainerIsFrozenForItsCheckpoint before that is made, and no checkpoint is made of one that was thawed
// meanwhile: the other containers of its pod have gone on.
func TestAContainerIsFrozenForItsCheckpoint(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	freeze := func(timeout time.Duration) (*keeper.CheckpointRequest, func(context.Context) error) {
		t.Helper()
		nonce, thaw, err := n.client.Freeze(n.ctx(), "c", timeout)
		if err != nil || !n.frozen("c") {
			t.Fatalf("frozen %t, %v", n.frozen("c"), err)
		}
		req := n.checkpoint("c", time.Minute)
		req.Nonce = nonce
		return req, thaw
	}
	req, thaw := freeze(time.Minute)
	if _, _, err := n.client.Freeze(n.ctx(), "c", time.Minute); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a second one meanwhile: %v", err)
	}
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute)); !errors.Is(err,
		errdefs.ErrFailedPrecondition) {
		t.Errorf("somebody else's checkpoint meanwhile: %v", err)
	}
	if _, err := n.client.Checkpoint(n.ctx(), req); err != nil || !n.frozen("c") {
		t.Fatalf("frozen %t, %v", n.frozen("c"), err)
	}
	if _, err := os.Stat(filepath.Join(req.Images, "pages")); err != nil {
		t.Error(err)
	}
	if err := thaw(n.ctx()); err != nil || n.frozen("c") {
		t.Errorf("frozen %t, %v", n.frozen("c"), err)
	}
	if _, err := n.client.Checkpoint(n.ctx(), req); !errors.Is(err, errdefs.ErrFailedPrecondition) || n.frozen("c") {
		t.Errorf("a checkpoint after the thaw: frozen %t, %v", n.frozen("c"), err)
	}

	req, _ = freeze(3 * time.Second)
	n.until("its time is over", func() bool { return !n.frozen("c") })
	if _, err := n.client.Checkpoint(n.ctx(), req); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a checkpoint after the time: %v", err)
	}

	n.engine.meanwhile("freeze c", func() { // it is ended while it freezes
		c, err := n.server.containers.get("c")
		if err == nil {
			err = n.server.thaw(c, "")
		}
		if err != nil {
			t.Error(err)
		}
	})
	if _, _, err := n.client.Freeze(n.ctx(), "c", time.Minute); !errors.Is(err, errdefs.ErrFailedPrecondition) ||
		n.frozen("c") {
		t.Errorf("it was ended meanwhile: frozen %t, %v", n.frozen("c"), err)
	}

	_, thaw = freeze(time.Minute)
	n.client.Close()
	n.connect()
	n.until("nobody waits for it", func() bool { return !n.frozen("c") })
	if err := thaw(n.ctx()); err == nil {
		t.Error("the client that has gone thawed it")
	}
	if _, _, err := n.client.Freeze(n.ctx(), "c", 0); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("without time: %v", err)
	}
	if _, _, err := n.client.Freeze(n.ctx(), "none", time.Minute); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

// TestACheckpointThatIsLateThaws: one that freezes its container after its time is over, or after it was ended, leaves
// nothing frozen.
func TestACheckpointThatIsLateThaws(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	n.engine.meanwhile("checkpoint c", func() { time.Sleep(60 * time.Millisecond) })
	_, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", 20*time.Millisecond))
	if !errors.Is(err, errdefs.ErrFailedPrecondition) || n.frozen("c") {
		t.Errorf("its time was over: frozen %t, %v", n.frozen("c"), err)
	}
	n.engine.meanwhile("checkpoint c", func() {
		c, err := n.server.containers.get("c")
		if err == nil {
			err = n.server.thaw(c, "")
		}
		if err != nil {
			t.Error(err)
		}
	})
	_, err = n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute))
	if !errors.Is(err, errdefs.ErrFailedPrecondition) || n.frozen("c") {
		t.Errorf("it was ended meanwhile: frozen %t, %v", n.frozen("c"), err)
	}
	thaw, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute))
	if err != nil || !n.frozen("c") {
		t.Fatalf("the next: frozen %t, %v", n.frozen("c"), err)
	}
	if err := thaw(n.ctx()); err != nil || n.frozen("c") {
		t.Errorf("frozen %t, %v", n.frozen("c"), err)
	}
}

// TestThePodsInit: it is told as any container, and its program is a file of the keeper's.
func TestThePodsInit(t *testing.T) {
	n := start(t)
	req := n.shell("pod", "")
	req.Reaper, req.LogPath = true, ""
	root := req.Spec.Root.Path
	for _, made := range []string{protocol.ReaperProgram, "proc"} { // as an engine does
		var err error
		if path := filepath.Join(root, made); made == "proc" {
			err = os.Mkdir(path, 0o755)
		} else {
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n.run(req)
	if st := n.status("pod"); st.State != keeper.StateRunning {
		t.Errorf("%+v", st)
	}
	if err := n.client.Delete(n.ctx(), "pod"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(root); len(left) > 0 {
		t.Errorf("left in the pod's root: %v", left)
	}
}

// TestARemovalThatFails: the container stays known, and the next call removes it.
func TestARemovalThatFails(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exit 0"))
	n.ended("c")
	n.engine.failAt("destroy c", errors.New("busy"))
	if err := n.client.Delete(n.ctx(), "c"); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("%v", err)
	}
	if st := n.status("c"); st.State != keeper.StateExited {
		t.Errorf("%+v", st)
	}
	n.engine.failAt("destroy c", nil)
	if err := n.client.Delete(n.ctx(), "c"); err != nil {
		t.Error(err)
	}
	if err := n.client.Delete(n.ctx(), "unknown"); err != nil || !n.engine.has("remove unknown") {
		t.Errorf("what is not known: %v", err)
	}
	if err := n.client.Delete(n.ctx(), "../x"); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("an ID that is no file name: %v", err)
	}
}

// TestOutputThatOthersHoldOpen: a process that has the pipe keeps the container's end from nobody.
func TestOutputThatOthersHoldOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for drainWait")
	}
	n := start(t)
	n.run(n.shell("c", "sleep 1000 & echo $!; exit 0"))
	n.until("its end is known", func() bool { return n.status("c").State == keeper.StateExited })
	st := n.ended("c")
	var pid int
	if _, err := fmt.Sscan(n.output("c"), &pid); err != nil || st.ExitCode != 0 {
		t.Fatalf("%q, %+v, %v", n.output("c"), st, err)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// TestARecordTellsOfACheckpointUntilItIsThawed: a keeper that is killed as it thaws a container leaves the record by
// which the next one thaws it, whatever else has been recorded meanwhile; and no other checkpoint begins before.
func TestARecordTellsOfACheckpointUntilItIsThawed(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("c", time.Minute)); err != nil {
		t.Fatal(err)
	}
	c, err := n.server.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	// Whoever thaws it waits here until somebody reads.
	file := filepath.Join(c.Record().Cgroups[""], "cgroup.freeze")
	if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	thawed := make(chan error, 1)
	go func() { thawed <- n.client.EndCheckpoint(n.ctx(), "c") }()
	n.until("it is being thawed", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.thawing
	})
	c.change(func(*record.Container) {})
	b, err := os.ReadFile(filepath.Join(n.dir, recordsDir, "c.json"))
	if err != nil || !strings.Contains(string(b), `"checkpoint":`) {
		t.Errorf("the record does not tell of the checkpoint: %s, %v", b, err)
	}
	if err := n.server.thaw(c, ""); !errors.Is(err, errThawed) {
		t.Errorf("a second thaw: %v", err)
	}
	r, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := <-thawed; err != nil {
		t.Error(err)
	}
	if got := c.Record(); got.Checkpoint != "" || got.CheckpointBy != "" {
		t.Errorf("%+v", got)
	}
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("0"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestFilesThatNobodyTakesAreClosed: a call that brings more files than it has use for leaves none of them open.
func TestFilesThatNobodyTakesAreClosed(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	c, err := n.server.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	for _, bring := range []func(files map[protocol.Role]int) error{
		func(files map[protocol.Role]int) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.join(c.out, &api.AttachRequest{ContainerId: "c", AttachId: "a"}, files)
		},
		func(files map[protocol.Role]int) error {
			p := newExec(c, record.Exec{ContainerID: "c", ExecID: "e"})
			p.start(&specs.Process{Args: []string{"true"}, Cwd: "/"}, files, "", 0)
			<-p.done
			return p.runErr
		},
	} {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		if err := bring(map[protocol.Role]int{protocol.RoleConsole: pipe[1]}); err != nil {
			t.Fatal(err)
		}
		if got, err := unix.Read(pipe[0], make([]byte, 1)); got != 0 || err != nil { // its end
			t.Errorf("the file stays open: %d, %v", got, err)
		}
		unix.Close(pipe[0])
	}
}

// TestAnEndIsOnDiskBeforeItIsTold: a keeper that was killed in between had told an exit code, and the next one told
// that nobody knows it.
func TestAnEndIsOnDiskBeforeItIsTold(t *testing.T) {
	n := start(t)
	begin := filepath.Join(t.TempDir(), "go")
	n.run(n.shell("c", fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done; exit 9", begin)))
	// Whoever saves the record waits here until somebody reads.
	spare := filepath.Join(n.dir, recordsDir, "c.json.spare")
	if err := errors.Join(os.Remove(spare), unix.Mkfifo(spare, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(begin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.until("the end is being saved", func() bool {
		b, err := os.ReadFile(filepath.Join(n.dir, recordsDir, "c.json"))
		return err == nil && strings.Contains(string(b), `"exited"`)
	})
	if st := n.status("c"); st.State != keeper.StateRunning {
		t.Errorf("it is told before it is saved: %+v", st)
	}
	r, err := os.Open(spare)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if st := n.ended("c"); st.ExitCode != 9 {
		t.Errorf("%+v", st)
	}
}

// TestAFirstClientThatIsKilledDuringALongStart: it is cut off when the container is there, and the container reads the
// end of the input that was for that client only. Seen to fail where clients are looked for once, when their session
// has ended: the container waited for input for ever.
func TestAFirstClientThatIsKilledDuringALongStart(t *testing.T) {
	n := start(t)
	killed := make(chan struct{})
	n.engine.meanwhile("start c", func() {
		n.client.Close()
		close(killed)
		n.until("its session has ended", func() bool { return len(n.server.sessions.All()) == 0 })
		time.Sleep(3 * returnWait / 2) // it has been looked for by then
	})
	req := n.shell("c", "cat; exit 5")
	req.Stdin, req.StdinOnce = true, true
	req.Attach = &keeper.AttachRequest{AttachID: "first", Stdin: true}
	if _, err := n.client.Run(n.ctx(), req); err == nil {
		t.Error("the client that was killed has an answer")
	}
	<-killed
	n.connect()
	if st := n.ended("c"); st.ExitCode != 5 {
		t.Errorf("%+v", st)
	}
	c, err := n.server.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.clients) != 0 || len(c.owners) != 0 {
		t.Errorf("clients %v, owners %v", c.clients, c.owners)
	}
}

// TestARecordGoesBeforeItsIDIsFree: a start that has failed removes its record. A start of the same ID that came before
// that lost its own record by it, and with that its container if the keeper was killed.
func TestARecordGoesBeforeItsIDIsFree(t *testing.T) {
	n := start(t)
	n.engine.failAt("start c", errors.New("no"))
	locked := make(chan *container, 1)
	n.engine.meanwhile("start c", func() {
		c, _ := n.server.containers.get("c")
		c.saving.Lock() // nobody removes the record
		locked <- c
	})
	failed := make(chan error, 1)
	go func() {
		_, err := n.client.Run(n.ctx(), n.shell("c", "exec sleep 1000"))
		failed <- err
	}()
	c := <-locked
	for until := time.Now().Add(100 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if _, err := n.server.containers.get("c"); err != nil {
			t.Fatalf("its ID is free, and its record is there: %v", err)
		}
	}
	c.saving.Unlock()
	if err := <-failed; err == nil {
		t.Error("it has started")
	}
}

// TestAStartThatCannotBeUndoneIsNotForgotten: the next keeper finds the record of a container whose start was cut off,
// and tries again.
func TestAStartThatCannotBeUndoneIsNotForgotten(t *testing.T) {
	n := start(t)
	n.engine.dieAt("begin c")
	go func() { _, _ = n.client.Run(n.ctx(), n.shell("c", "exec sleep 1000")) }()
	n.until("the start has come there", func() bool { return n.engine.has("begin c") })
	n.client.Close() // so that it is not made again
	path := filepath.Join(n.dir, recordsDir, "c.json")
	n.engine.failAt("abort c", errors.New("a process does not end"))
	n.replace()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("after a keeper that could not remove it: %v", err)
	}
	n.engine.failAt("abort c", nil)
	n.replace()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a keeper that could: %v", err)
	}
	n.connect()
}

// TestAStartThatIsBeingUndoneHoldsUpNoOther: an OCI runtime may hang as it is called for that. Seen to fail where the
// keeper undid it before it answered.
func TestAStartThatIsBeingUndoneHoldsUpNoOther(t *testing.T) {
	n := start(t)
	n.engine.dieAt("begin c")
	go func() { _, _ = n.client.Run(n.ctx(), n.shell("c", "exec sleep 1000")) }()
	n.until("the start has come there", func() bool { return n.engine.has("begin c") })
	n.client.Close() // so that it is not made again
	release := make(chan struct{})
	n.engine.meanwhile("abort c", func() { <-release })
	began := time.Now()
	n.replace()
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the next keeper answers after %v", took)
	}
	n.connect()
	n.run(n.shell("other", "exec sleep 1000"))
	ctx, cancel := context.WithTimeout(n.ctx(), time.Second)
	defer cancel()
	if _, err := n.client.Run(ctx, n.shell("c", "exec sleep 1000")); !errdefs.IsUnavailable(err) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is started while its last start is being undone: %v", err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- n.client.Delete(n.ctx(), "c") }()
	select {
	case err := <-deleted:
		t.Errorf("it is deleted while its start is being undone: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	n.run(n.shell("c", "exec sleep 1000"))
}

// TestADeletionUndoesAStartThatTheKeeperCouldNotUndo: whoever set the container up is asked again. Seen to fail where
// only its record and what a built-in engine has of it were removed.
func TestADeletionUndoesAStartThatTheKeeperCouldNotUndo(t *testing.T) {
	n := start(t)
	n.engine.dieAt("begin c")
	go func() { _, _ = n.client.Run(n.ctx(), n.shell("c", "exec sleep 1000")) }()
	n.until("the start has come there", func() bool { return n.engine.has("begin c") })
	n.client.Close()
	n.engine.failAt("abort c", errors.New("a process does not end"))
	n.replace()
	n.connect()
	if _, err := n.client.Run(n.ctx(), n.shell("c", "true")); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "a process does not end") {
		t.Errorf("it is started: %v", err)
	}
	if err := n.client.Delete(n.ctx(), "c"); err == nil || !strings.Contains(err.Error(), "a process does not end") {
		t.Errorf("what cannot be removed is deleted: %v", err)
	}
	path := filepath.Join(n.dir, recordsDir, "c.json")
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	n.engine.failAt("abort c", nil)
	if err := n.client.Delete(n.ctx(), "c"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	n.run(n.shell("c", "exec sleep 1000"))
}

// TestAnUpgradeKnowsAStartThatTheKeeperCouldNotUndo, which is in its record alone. Seen to fail where the next program
// did not look for it: the deletion succeeded without the engine.
func TestAnUpgradeKnowsAStartThatTheKeeperCouldNotUndo(t *testing.T) {
	n := start(t)
	n.engine.dieAt("begin c")
	go func() { _, _ = n.client.Run(n.ctx(), n.shell("c", "exec sleep 1000")) }()
	n.until("the start has come there", func() bool { return n.engine.has("begin c") })
	n.client.Close()
	n.engine.failAt("abort c", errors.New("a process does not end"))
	n.replace()
	n.connect()
	n.run(n.shell("other", "exec sleep 1000"))
	n.handOver()
	if err := n.client.Delete(n.ctx(), "c"); err == nil || !strings.Contains(err.Error(), "a process does not end") {
		t.Errorf("what cannot be removed is deleted: %v", err)
	}
	if _, err := n.client.Run(n.ctx(), n.shell("c", "true")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("it is started: %v", err)
	}
	n.engine.failAt("abort c", nil)
	if err := n.client.Delete(n.ctx(), "c"); err != nil {
		t.Error(err)
	}
	n.run(n.shell("c", "exec sleep 1000"))
	if st := n.status("other"); st.State != keeper.StateRunning {
		t.Errorf("a container that runs is %s after the upgrade", st.State)
	}
}

// TestASandboxThatDoesNotAnswerToAKillIsEnded, with the containers in it, so that the pod can be removed. Seen to fail
// where the error of the kill was all.
func TestASandboxThatDoesNotAnswerToAKillIsEnded(t *testing.T) {
	for _, all := range []bool{false, true} {
		n := start(t)
		sandbox, c := n.shell("sandbox", "exec sleep 1000"), n.shell("c", "exec sleep 1000")
		c.Sandbox, sandbox.RuntimePath, c.RuntimePath = "sandbox", "/bin/runsc", "/bin/runsc"
		n.run(sandbox)
		n.run(c)
		n.engine.failAt("signal c", errors.New("it says no"))
		if err := n.client.Signal(n.ctx(), "c", unix.SIGKILL, all); err == nil {
			t.Error("it is killed")
		}
		if st := n.status("sandbox"); st.State != keeper.StateRunning {
			t.Errorf("after an error of the runtime the sandbox is %s", st.State)
		}
		n.engine.failAt("signal c", fmt.Errorf("kill: it has not ended: %w", context.DeadlineExceeded))
		if err := n.client.Signal(n.ctx(), "c", unix.SIGKILL, all); err != nil {
			t.Error(err)
		}
		if st := n.ended("sandbox"); st.ExitCode != 128+int(unix.SIGKILL) {
			t.Errorf("the sandbox has ended with %d", st.ExitCode)
		}
		n.engine.failAt("signal c", errors.New("nobody answers"))
		if err := n.client.Signal(n.ctx(), "c", unix.SIGKILL, all); err != nil {
			t.Errorf("a container whose sandbox is dead: %v", err)
		}
		// The process that stands for the container ends with the sandbox where there is one.
		if err := unix.Kill(n.status("c").PID, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatAProxyCannotEndIsEndedInTheSandbox: a proxy that is killed leaves the program in the sandbox, and one that
// ends leaves what the program has left in a PID namespace of others. Seen to fail where the sandbox was not asked.
func TestWhatAProxyCannotEndIsEndedInTheSandbox(t *testing.T) {
	for what, c := range map[string]struct {
		script string // of the process that stands for the proxy
		own    bool   // the container has a PID namespace of its own
		asked  bool
	}{
		"the proxy is killed":          {script: "kill -9 $$", own: true, asked: true},
		"it does not know":             {script: "exit 255", own: true, asked: true},
		"a program that ends":          {script: "exit 3", own: true},
		"a program among those of all": {script: "exit 3", asked: true},
	} {
		t.Run(what, func(t *testing.T) {
			n := start(t)
			sandbox, in := n.shell("sandbox", "exec sleep 1000"), n.shell("c", c.script)
			in.Sandbox, sandbox.RuntimePath, in.RuntimePath = "sandbox", "/bin/runsc", "/bin/runsc"
			if c.own {
				in.Spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
			}
			n.run(sandbox)
			n.run(in)
			n.ended("c")
			if asked := n.engine.has("signal c"); asked != c.asked {
				t.Errorf("the sandbox was asked: %v", asked)
			}
		})
	}
}
