package client_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// runtimes are the ways to make containers: the keeper's own, libcontainer alone, and binaries.
func runtimes(t *testing.T, fn func(t *testing.T, n *node, use func(*keeper.RunRequest) *keeper.RunRequest)) {
	for _, name := range []string{"stage", "libcontainer", "runc", "crun"} {
		t.Run(name, func(t *testing.T) {
			var choice keeper.SetupChoice
			path := ""
			if name == "stage" || name == "libcontainer" {
				choice = keeper.SetupChoice(name)
			} else {
				var err error
				if path, err = exec.LookPath(name); err != nil {
					t.Skipf("needs %s: %v", name, err)
				}
			}
			program := binary
			if name == "crun" {
				program = withoutUnified(t)
			}
			fn(t, startProgram(t, program), func(r *keeper.RunRequest) *keeper.RunRequest {
				r.RuntimePath, r.Setup = path, choice
				return r
			})
		})
	}
}

// withoutUnified starts a keeper that does not see the v2 hierarchy beside v1 ones, with which crun refuses to work.
func withoutUnified(t *testing.T) string {
	const unified = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(unified); err != nil {
		return binary
	}
	path := filepath.Join(t.TempDir(), "keeper")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'umount %s; exec \"$0\" \"$@\"' %s \"$@\"\n", unified, binary)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryRuntimeLivesTheSameLife(t *testing.T) {
	runtimes(t, func(t *testing.T, n *node, use func(*keeper.RunRequest) *keeper.RunRequest) {
		n.run(use(n.request("code", "sh", "-c", "echo out; echo err >&2; exit 7")))
		if st := n.ended("code"); st.ExitCode != 7 || st.Lost {
			t.Errorf("status %+v", st)
		}
		if o, e := n.output("stdout", n.logPath("code")), n.output("stderr", n.logPath("code")); o != "out\n" ||
			e != "err\n" {
			t.Errorf("stdout %q, stderr %q", o, e)
		}
		n.delete("code")

		_, err := n.client.Run(n.ctx(), use(n.request("missing", "no-such-program")))
		var se *keeper.StartError
		if !errors.As(err, &se) || se.ExitCode != 127 || !strings.Contains(err.Error(), "no-such-program") {
			t.Errorf("missing program: %v (%+v)", err, se)
		}

		req := use(n.request("a", "cat"))
		req.Stdin = true
		n.run(req)
		in, err := n.client.Input("a")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(in.File, "fed\n")
		n.until("input is in the log", func() bool { return n.output("stdout", n.logPath("a")) == "fed\n" })
		out, exit := n.exec("a", 0, "sh", "-c", "echo run; exit 3")
		if out != "run\n" || exit.ExitCode != 3 {
			t.Errorf("exec: %q %+v", out, exit)
		}
		_, err = n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: "x",
			Process: n.process("no-such-program")})
		if !errors.As(err, &se) || se.ExitCode != 127 || !strings.Contains(err.Error(), "no-such-program") {
			t.Errorf("missing program: %v (%+v)", err, se)
		}
		// A runtime may set the size just after the program has started.
		p := n.process("sh", "-c", "until [ \"$(stty size 2>&1)\" = '20 70' ] || [ $((i+=1)) = 100 ]; "+
			"do sleep 0.02; done; stty size; exit 2")
		p.Terminal = true
		res, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: "t", Process: p, Width: 70,
			Height: 20})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Console) // ends with EIO
		res.Console.Close()
		if !strings.Contains(string(b), "20 70") {
			t.Errorf("terminal says %q", b)
		}
		if exit, err := n.client.WaitExec(n.ctx(), "a", "t"); err != nil || exit.ExitCode != 2 {
			t.Errorf("exit %+v, %v", exit, err)
		}
		_, exit = n.exec("a", 2*time.Second, "sh", "-c", "(setsid sleep 2000 &) ; sleep 3000")
		if !exit.TimedOut || exit.ExitCode != 137 {
			t.Errorf("exec with a timeout: %+v", exit)
		}
		n.until("its daemon has died", func() bool {
			ps, _ := n.exec("a", 0, "ps", "-o", "args")
			return !strings.Contains(ps, "2000")
		})

		limit := int64(64 << 20)
		memory := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
		if err := n.client.Update(n.ctx(), "a", memory); err != nil {
			t.Errorf("update: %v", err)
		}
		for _, f := range []string{"/sys/fs/cgroup/memory" + n.cgroup + "/a/memory.limit_in_bytes",
			"/sys/fs/cgroup" + n.cgroup + "/a/memory.max"} {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) != "67108864" {
				t.Errorf("%s is %s", f, b)
			}
		}
		if out, _ := n.exec("a", 0, "echo", "after update"); out != "after update\n" {
			t.Errorf("exec after update: %q", out)
		}
		if err := n.client.Pause(n.ctx(), "a"); err != nil {
			t.Fatal(err)
		}
		if st, err := n.client.Status(n.ctx(), "a"); err != nil || !st.Paused {
			t.Errorf("paused: %+v, %v", st, err)
		}
		_, err = n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: "p", Process: n.process("true")})
		if !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Errorf("exec in a paused container: %v", err)
		}
		if err := n.client.Resume(n.ctx(), "a"); err != nil {
			t.Fatal(err)
		}
		// Upgrades and deaths are all the same to a container.
		if err := n.client.Upgrade(n.ctx()); err != nil {
			t.Fatal(err)
		}
		old := n.pid()
		if err := unix.Kill(old, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.until("another keeper answers", func() bool { return n.pid() != old })
		if out, exit := n.exec("a", 0, "echo", "orphan"); out != "orphan\n" || exit.ExitCode != 0 {
			t.Errorf("exec in an orphan: %q %+v", out, exit)
		}
		in.File.Close()
		if err := n.client.CloseStdin(n.ctx(), "a"); err != nil {
			t.Fatal(err)
		}
		n.endedOrphan("a", 0)

		req = use(n.request("tty", "sh", "-c", "read x; echo got $x"))
		req.Stdin, req.Spec.Process.Terminal = true, true
		n.run(req)
		in, err = n.client.Input("tty")
		if err != nil || !in.Terminal {
			t.Fatalf("terminal: %+v, %v", in, err)
		}
		io.WriteString(in.File, "it\n")
		in.File.Close()
		n.ended("tty")
		if out := n.output("stdout", n.logPath("tty")); !strings.Contains(out, "got it") {
			t.Errorf("terminal's log: %q", out)
		}

		n.run(use(n.request("dies", "sleep", "1000")))
		if err := n.client.Signal(n.ctx(), "dies", syscall.SIGKILL, true); err != nil {
			t.Fatal(err)
		}
		if st := n.ended("dies"); st.ExitCode != 137 {
			t.Errorf("status %+v", st)
		}
		n.run(use(n.request("deleted", "sleep", "1000")))
		for _, id := range []string{"deleted", "dies", "a", "tty"} {
			n.delete(id)
		}
		n.nothingLeft()
	})
}

// An OCI runtime may give the streams that it gets to the container's user, as crun 1.8.1 does with its stdin, and an
// exec keeps them as they are. Seen to fail with os.DevNull in null.Open, for the execs of every runtime.
func TestTheHostsNullDeviceIsNotGivenAway(t *testing.T) {
	status := func(path string) (st unix.Stat_t) {
		t.Helper()
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	const base = 231000 // no other test's
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: base, Size: 65536}}
	host := status(os.DevNull)
	runtimes(t, func(t *testing.T, n *node, use func(*keeper.RunRequest) *keeper.RunRequest) {
		t.Cleanup(func() {
			if st := status(os.DevNull); st.Uid >= base && st.Uid < base+65536 || st.Gid >= base && st.Gid < base+65536 {
				t.Errorf("the host's /dev/null belongs to %d:%d", st.Uid, st.Gid)
				_ = os.Chown(os.DevNull, int(host.Uid), int(host.Gid))
			}
		})
		n.reachable()
		for name, edit := range map[string]func(*specs.Spec){
			"plain": func(*specs.Spec) {},
			"a-hook": func(s *specs.Spec) {
				// It reads what it gets: crun before 1.17 fails a start when a hook has ended before it was written to.
				s.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/cat", Args: []string{"cat"}}}}
			},
			"terminal": func(s *specs.Spec) { s.Process.Terminal = true },
			"user":     func(s *specs.Spec) { s.Process.User = specs.User{UID: base + 5, GID: base + 6} },
			"namespace": func(s *specs.Spec) {
				s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
				s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
			},
		} {
			req := use(n.request(name, "sleep", "1000"))
			edit(req.Spec)
			pid := n.run(req).PID
			// crun says that it has started a moment before its process is the program, and cannot join a user namespace until
			// then.
			n.until(name+" is the program", func() bool {
				line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return err == nil && string(line) == "sleep\x001000\x00"
			})
			p := *req.Spec.Process
			p.Args, p.Terminal = []string{"sleep", "1000"}, false
			res, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: name, ExecID: "x", Process: &p})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for what, pid := range map[string]int{"init process": pid, "exec": res.PID} {
				if name == "namespace" && what == "init process" {
					continue // its /dev/null is the host's, which it has no rights to
				}
				for fd := range 3 {
					if st := status(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); st.Dev == host.Dev && st.Ino == host.Ino {
						t.Errorf("%s: stream %d of the %s is the host's /dev/null", name, fd, what)
					}
				}
			}
			n.delete(name)
		}
	})
}

// nothingLeft checks that the keeper's directory and the cgroups know of no container.
func (n *node) nothingLeft() {
	n.Helper()
	for _, pattern := range []string{"/rows/*", "/bundles/*", "/state/*", "/state/.*/*", "/spill/*"} {
		left, _ := filepath.Glob(n.dir + pattern)
		for _, l := range left {
			if base := filepath.Base(l); base != ".runc" && base != ".crun" {
				n.Errorf("%s is left", l)
			}
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*" + n.cgroup + "/*", "/sys/fs/cgroup" + n.cgroup + "/*"} {
		left, _ := filepath.Glob(pattern)
		for _, l := range left {
			if st, err := os.Stat(l); err == nil && st.IsDir() {
				n.Errorf("cgroup %s is left", l)
			}
		}
	}
}
