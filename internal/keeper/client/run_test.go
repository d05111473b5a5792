package client_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	keeper "berth/internal/keeper/client"
)

func TestExitCodeIsReported(t *testing.T) {
	n := start(t)
	for _, c := range []struct {
		id, script string
		want       int
	}{
		{"zero", "exit 0", 0},
		{"seven", "exit 7", 7},
		{"output", "echo hello; echo oops >&2; exit 3", 3},
	} {
		res := n.run(n.request(c.id, "sh", "-c", c.script))
		if res.PID <= 0 || res.StartedAt.IsZero() {
			t.Errorf("%s: result %+v", c.id, res)
		}
		st := n.ended(c.id)
		if st.ExitCode != c.want || st.State != keeper.StateExited || st.Lost || st.OOMKilled || st.FinishedAt.IsZero() {
			t.Errorf("%s: status %+v, want exit code %d", c.id, st, c.want)
		}
		if st.PodID != "pod-of-"+c.id {
			t.Errorf("%s: pod %q", c.id, st.PodID)
		}
		n.delete(c.id)
		if _, err := n.client.Status(n.ctx(), c.id); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s after delete: %v", c.id, err)
		}
		n.delete(c.id) // again: no error
	}
	if got := n.output("stdout", n.logPath("output")); got != "hello\n" {
		t.Errorf("stdout %q", got)
	}
	if got := n.output("stderr", n.logPath("output")); got != "oops\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestSignalEndsContainer(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	if err := n.client.Signal(n.ctx(), "a", syscall.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("a"); st.ExitCode != 137 {
		t.Errorf("exit code %d", st.ExitCode)
	}
	if err := n.client.Signal(n.ctx(), "a", syscall.SIGTERM, false); err != nil {
		t.Errorf("signal to one that has exited: %v", err)
	}
	if err := n.client.Signal(n.ctx(), "nobody", syscall.SIGTERM, false); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("signal to nobody: %v", err)
	}
	n.run(n.request("b", "sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done"))
	n.until("b is ready", func() bool { return n.output("stdout", n.logPath("b")) == "ready\n" })
	if err := n.client.Signal(n.ctx(), "b", syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("b"); st.ExitCode != 4 {
		t.Errorf("exit code %d", st.ExitCode)
	}
	n.run(n.request("c", "sleep", "1000"))
	n.delete("c")
}

func TestProgramThatCannotStart(t *testing.T) {
	n := start(t)
	if err := os.WriteFile(n.root+"/bin/plain", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   string
		args []string
		code int
		kind error
	}{
		{"missing", []string{"no-such-program"}, 127, errdefs.ErrNotFound},
		{"absent", []string{"/bin/no-such-program"}, 127, errdefs.ErrNotFound},
		{"forbidden", []string{"/bin/plain"}, 126, errdefs.ErrPermissionDenied},
		{"directory", []string{"/tmp"}, 126, errdefs.ErrPermissionDenied},
	} {
		_, err := n.client.Run(n.ctx(), n.request(c.id, c.args...))
		var se *keeper.StartError
		if !errors.As(err, &se) || se.ExitCode != c.code || !errors.Is(err, c.kind) ||
			!strings.Contains(err.Error(), c.args[0]) {
			t.Errorf("%s: %v (%+v)", c.id, err, se)
		}
		if _, err := n.client.Status(n.ctx(), c.id); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s is still on the table: %v", c.id, err)
		}
	}
	bad := n.request("bad", "true")
	bad.Spec.Root.Path = "relative"
	if _, err := n.client.Run(n.ctx(), bad); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("relative root: %v", err)
	}
	n.run(n.request("twice", "sleep", "100"))
	if _, err := n.client.Run(n.ctx(), n.request("twice", "true")); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("same ID again: %v", err)
	}
}

func TestExecInRunningContainer(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	out, exit := n.exec("a", 0, "sh", "-c", "echo $HOME; exit 5")
	if out != "/\n" || exit.ExitCode != 5 || exit.TimedOut {
		t.Errorf("output %q, exit %+v", out, exit)
	}
}

// TestAForeignProcessIsNoPIDNamespaceToJoin: the process ID of a target may be that of any process of the node by the
// time of the start, if the target has ended. Seen to fail without targetLives: the container was in the PID namespace
// of the host.
func TestAForeignProcessIsNoPIDNamespaceToJoin(t *testing.T) {
	foreign := exec.Command("/bin/busybox", "sleep", "1000")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = foreign.Process.Kill(); _ = foreign.Wait() })
	n := start(t)
	for _, setup := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		id := "foreign-" + string(setup)
		req := n.request(id, "/bin/sleep", "1000")
		req.Setup = setup
		req.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", foreign.Process.Pid)
		if _, err := n.client.Run(n.ctx(), req); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "running container") {
			t.Errorf("%s: %v", setup, err)
		}
		if list, err := n.client.List(n.ctx()); err != nil || len(list) > 0 {
			t.Errorf("%s: containers are left: %v, %v", setup, list, err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup + "/" + id); len(left) > 0 {
			t.Errorf("%s: cgroups are left: %v", setup, left)
		}
	}
}

// TestAContainerOfAnotherPodIsNoPIDNamespaceToJoin: the process ID of a target that has ended may be that of a
// container of another pod by the time of the start. Seen to fail with the containers of all pods taken for targets:
// the container saw the processes of the other pod.
func TestAContainerOfAnotherPodIsNoPIDNamespaceToJoin(t *testing.T) {
	n := start(t)
	other := n.run(n.request("other", "sleep", "1000"))
	for _, setup := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		join := func(id, pod string) error {
			req := n.request(id, "sleep", "1000")
			req.Setup, req.PodID = setup, pod
			req.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", other.PID)
			_, err := n.client.Run(n.ctx(), req)
			return err
		}
		id := "foreign-" + string(setup)
		if err := join(id, "pod-of-"+id); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "running container of the pod") {
			t.Errorf("%s: %v", setup, err)
			ps, _ := n.exec(id, 0, "ps")
			t.Logf("it sees\n%s", ps)
		}
		if _, err := n.client.Status(n.ctx(), id); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s is still on the table: %v", id, err)
		}
		id = "own-" + string(setup)
		if err := join(id, "pod-of-other"); err != nil {
			t.Errorf("%s: one of the same pod: %v", setup, err)
		}
	}
}

// TestAContainerMayWriteToNoFile: its limit of the size of files is 0. Seen to fail where the stage itself marks that
// the program begins, in a file: no such container started.
func TestAContainerMayWriteToNoFile(t *testing.T) {
	n := start(t)
	for _, setup := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		req := n.request("fsize-"+string(setup), "sh", "-c", "echo x >/tmp/file && exit 1; exit 5")
		req.Setup, req.Spec.Process.Rlimits = setup, []specs.POSIXRlimit{{Type: "RLIMIT_FSIZE"}}
		n.run(req)
		if st := n.ended(req.ID); st.ExitCode != 5 && st.ExitCode != 128+int(syscall.SIGXFSZ) {
			t.Errorf("%s: exit code %d", setup, st.ExitCode)
		}
	}
}
