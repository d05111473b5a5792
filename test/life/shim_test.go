package life

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
	programs "berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// shimNode is a node with two runtime handlers of containerd's shims: "runc-shim", whose task service is of version 3,
// and "gvisor", whose is of version 2.
type shimNode struct {
	*node.Node
	roots []string // where the runtimes of the shims keep their states
}

// handlersOfShims are both.
var handlersOfShims = []string{"runc-shim", "gvisor"}

// withShims starts such a node. Shims are found by their names, as containerd finds them.
func withShims(t *testing.T) *shimNode {
	t.Helper()
	nodetest.BerthOnly(t, "it is about handlers of berthd")
	dir := t.TempDir()
	paths := map[string]string{}
	for _, p := range []programs.Program{programs.ContainerdShim, programs.Runc, programs.RunscShim, programs.Runsc} {
		path, err := p.Build(nodetest.Building(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, p.Name())); err != nil {
			t.Fatal(err)
		}
		paths[p.Name()] = path
	}
	// berthd looks for shims in its PATH, and shims look for their runtimes in the keeper's.
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := &shimNode{roots: []string{filepath.Join(t.TempDir(), "runc"), filepath.Join(t.TempDir(), "runsc")}}
	gvisor := shimWithoutRights(t, paths[programs.RunscShim.Name()])
	config := filepath.Join(dir, "runsc.toml")
	text := fmt.Sprintf("root = %q\n", s.roots[1])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cleanUpSockets(t)
	t.Cleanup(func() { unmountNullNamespace(t, filepath.Join(s.roots[1], "k8s.io")) })
	s.Node = nodetest.Start(t, node.Options{Tables: fmt.Sprintf(`
[runtimes.runc-shim]
type = "shim"
runtime_type = "io.containerd.runc.v2"
options = { BinaryName = %q, Root = %q }

[runtimes.gvisor]
type = "shim"
path = %q
options = { TypeUrl = "io.containerd.runsc.v1.options", ConfigPath = %q }
`, paths["runc"], s.roots[0], gvisor, config)})
	return s
}

// shimWithoutRights is gVisor's shim, for a machine on which root may not lower the OOM score of a process. The shim
// takes that only where it finds itself in a user namespace. So there it is told that it is in one, by a file that is
// mounted over one of its process's, until the process ends.
func shimWithoutRights(t *testing.T, shim string) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile("/proc/self/oom_score_adj", own, 0) }()
	if os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0) == nil {
		return shim
	}
	dir := t.TempDir()
	mapping, script := filepath.Join(dir, "uid_map"), filepath.Join(dir, filepath.Base(shim))
	text := fmt.Sprintf("#!/bin/sh\nfor last; do :; done\n"+
		"test \"$last\" != start || mount --bind %s /proc/$$/uid_map || exit\nexec %s \"$@\"\n", mapping, shim)
	err = errors.Join(os.WriteFile(mapping, []byte("0 100000 65536\n"), 0o600),
		os.WriteFile(script, []byte(text), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// cleanUpSockets removes the directory of the sockets of shims after the test, if there was none before. It is empty
// then: a test that leaves a socket fails.
func cleanUpSockets(t *testing.T) {
	t.Helper()
	const sockets = "/run/containerd/s"
	var made []string
	for dir := sockets; dir != "/run"; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
			made = append(made, dir)
		}
	}
	before, _ := filepath.Glob(sockets + "/*")
	t.Cleanup(func() {
		nodetest.Eventually(t, 20*time.Second, "no socket is left of a shim that has ended", func() error {
			after, _ := filepath.Glob(sockets + "/*")
			for _, path := range after {
				if slices.Contains(before, path) {
					continue
				}
				if conn, err := net.Dial("unix", path); err == nil { // another package's, whose shim lives
					conn.Close()
				} else if !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("there is %s", path)
				}
			}
			return nil
		})
		for _, dir := range made {
			_ = os.Remove(dir)
		}
	})
}

// nothingLeft fails if anything of a pod is left that the node's own end does not look for.
func (s *shimNode) nothingLeft(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "nothing is left of the pod", func() error {
		for _, root := range s.roots {
			states, _ := filepath.Glob(filepath.Join(root, "k8s.io", "*"))
			for _, path := range states {
				if filepath.Base(path) != "null-netns" {
					return fmt.Errorf("%s is left", path)
				}
			}
		}
		for _, pattern := range []string{"bundles/*", "events-*"} {
			left, err := filepath.Glob(filepath.Join(s.State, "keeper", pattern))
			if err != nil || len(left) > 0 {
				return fmt.Errorf("%v is left (%w)", left, err)
			}
		}
		for pid, line := range commandLines(t) {
			if strings.Contains(line, filepath.Join(s.State, "keeper")) && strings.Contains(line, "containerd-shim") {
				return fmt.Errorf("process %d is left: %s", pid, line)
			}
		}
		return nil
	})
}

// remove removes a pod, and fails if anything of it is left.
func (s *shimNode) remove(t *testing.T, p *nodetest.Pod) {
	t.Helper()
	p.Remove()
	s.nothingLeft(t)
}

// shimOf is the process of a pod's shim.
func (s *shimNode) shimOf(t *testing.T, p *nodetest.Pod) int {
	t.Helper()
	for pid, line := range commandLines(t) {
		if strings.Contains(line, filepath.Join(s.State, "keeper")) && strings.Contains(line, "-id "+p.ID) &&
			!strings.HasPrefix(line, "berth-proxy ") {
			return pid
		}
	}
	t.Fatalf("pod %s has no shim", p.ID)
	return 0
}

func TestShimsRunThePodsOfTheirHandlers(t *testing.T) {
	s := withShims(t)
	for _, handler := range handlersOfShims {
		t.Run(handler, func(t *testing.T) { lifeInShim(t, s, handler) })
	}
}

func lifeInShim(t *testing.T, s *shimNode, handler string) {
	n := s.Node
	p := nodetest.RunPodHandler(t, n, handler, func(c *cri.PodSandboxConfig) { c.Hostname = "in-a-shim" })
	one := p.Run(nodetest.Sh("trap 'echo asked; exit 7' TERM; echo first; echo second >&2\n" +
		"while true; do echo hello | nc -l -p 8080 & wait $!; done"))
	two := p.Run()
	t.Run("a pod has one shim", func(t *testing.T) {
		if got := two.Sh("hostname"); got != "in-a-shim" {
			t.Errorf("hostname: %q", got)
		}
		if got := two.Sh("dmesg 2>&1; :"); strings.Contains(got, "gVisor") != (handler == "gvisor") {
			t.Errorf("dmesg: %q", got)
		}
		nodetest.Eventually(t, 30*time.Second, "one container reaches the other on localhost", func() error {
			return says(two.Sh("nc 127.0.0.1 8080 </dev/null; :"), "hello")
		})
		shim, shims := s.shimOf(t, p), 0
		for pid, line := range commandLines(t) {
			if parent(t, pid) != shim && strings.Contains(line, "containerd-shim") && strings.Contains(line, s.State) {
				shims++
			}
		}
		if shims != 1 {
			t.Errorf("there are %d shims", shims)
		}
	})
	t.Run("logs", func(t *testing.T) {
		nodetest.Eventually(t, 10*time.Second, "both are in the log", func() error { return says(one.Stderr(), "second") })
		if one.Stdout() != "first\n" || one.Stderr() != "second\n" {
			t.Errorf("%q, %q", one.Stdout(), one.Stderr())
		}
		c := p.Run(nodetest.Sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done; exit 3"))
		if e := c.WaitExit(); e.ExitCode != 3 || !strings.HasSuffix(c.Stdout(), "line 19999\nline 20000\n") {
			t.Errorf("%d, and the last line is missing", e.ExitCode)
		}
		c.Remove()
	})
	t.Run("a program that is not there", func(t *testing.T) {
		c := p.Create(func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"/no/such/program"}, nil })
		err := c.TryStart()
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if st := c.Status(); st.ExitCode != 127 || st.State != cri.ContainerState_CONTAINER_EXITED {
			t.Errorf("%v: %v", err, st)
		}
		c.Remove()
	})
	t.Run("exec", func(t *testing.T) {
		r, err := two.Exec(60, "sh", "-c", "echo out; echo err >&2; exit 4")
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.ExitCode != 4 {
			t.Errorf("got %q, %q, %d", r.Stdout, r.Stderr, r.ExitCode)
		}
		if r, err := two.Exec(60, "sh", "-c", "kill -9 $$"); err != nil || r.ExitCode != 137 {
			t.Errorf("killed: %v, %v", r, err)
		}
		if _, err := two.Exec(60, "/no/such/program"); err == nil {
			t.Error("a program that is not there is run")
		}
	})
	t.Run("exec with a time limit", func(t *testing.T) {
		_, err := two.Exec(1, "sh", "-c", "sleep 3799; :")
		nodetest.WantCode(t, err, codes.DeadlineExceeded)
		want := []string{"sh -c sleep 3799"}
		if handler == "runc-shim" { // a gVisor's process is known to nobody outside
			want = append(want, "sleep 3799")
		}
		nodetest.Eventually(t, time.Minute, "the command has ended", func() error {
			// With a limit: a ps in gVisor that looks at a process which is being killed was seen to hang, once.
			r, err := two.Exec(10, "ps", "-o", "args")
			if err != nil {
				return err
			}
			for _, w := range want {
				if strings.Contains(string(r.Stdout), "\n"+w) {
					return fmt.Errorf("%s", r.Stdout)
				}
			}
			return nil
		})
	})
	t.Run("exec with input", func(t *testing.T) {
		var out bytes.Buffer
		code, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY,
			execURL(t, two, &cri.ExecRequest{Cmd: []string{"sh", "-c", "wc -c; exit 5"}, Stdin: true, Stdout: true}),
			remotecommand.StreamOptions{Stdin: bytes.NewReader(make([]byte, 300_000)), Stdout: &out})
		if err != nil || code != 5 || strings.TrimSpace(out.String()) != "300000" {
			t.Errorf("%d, %q, %v", code, out.String(), err)
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		var out bytes.Buffer
		size := make(sizes, 1)
		size <- remotecommand.TerminalSize{Width: 91, Height: 33}
		code, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY,
			execURL(t, two, &cri.ExecRequest{
				Cmd: []string{"sh", "-c", "test -t 0 && echo a terminal; read x; echo got $x; " +
					"while [ \"$(stty size)\" != '33 91' ]; do sleep 0.1; done; exit 6"},
				Stdin: true, Stdout: true, Tty: true,
			}),
			remotecommand.StreamOptions{
				Stdin: strings.NewReader("typed\n"), Stdout: &out, Tty: true, TerminalSizeQueue: size,
			})
		if err != nil || code != 6 || !strings.Contains(out.String(), "a terminal\r\n") ||
			!strings.Contains(out.String(), "got typed\r\n") {
			t.Errorf("%d, %q, %v", code, out.String(), err)
		}
	})
	t.Run("a terminal", func(t *testing.T) {
		c := p.Run(nodetest.Sh("test -t 1 && echo a terminal; exit 2"), func(c *cri.ContainerConfig) { c.Tty = true })
		if st := c.WaitExit(); st.ExitCode != 2 || !strings.Contains(c.Log(), "a terminal") {
			t.Errorf("%d, %q", st.ExitCode, c.Log())
		}
		c.Remove()
	})
	t.Run("input", func(t *testing.T) {
		c := p.Run(func(c *cri.ContainerConfig) { c.Command, c.Stdin, c.StdinOnce = []string{"cat"}, true, true })
		at, err := n.Runtime.Attach(nodetest.Context(t), &cri.AttachRequest{ContainerId: c.ID, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		_, err = nodetest.Stream(nodetest.Context(t), nodetest.SPDY, at.Url,
			remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out})
		if st := c.WaitExit(); err != nil || st.ExitCode != 0 || out.String() != "typed\n" {
			t.Errorf("%v, %d, %q", err, st.ExitCode, out.String())
		}
		c.Remove()
	})
	t.Run("port-forward", func(t *testing.T) {
		nodetest.Eventually(t, 30*time.Second, "a port is reached", func() error {
			at, err := n.Runtime.PortForward(nodetest.Context(t), &cri.PortForwardRequest{
				PodSandboxId: p.ID, Port: []int32{8080},
			})
			if err != nil {
				return err
			}
			conn := nodetest.DialPort(t, at.Url, "8080")
			defer conn.Close()
			got, err := io.ReadAll(conn)
			return errors.Join(err, says(string(got), "hello"))
		})
	})
	t.Run("port-forward to the loopback address", func(t *testing.T) {
		if handler == "gvisor" {
			t.Skip("it has a network of its own")
		}
		c := p.Run(nodetest.Sh("busybox httpd -f -p 127.0.0.1:8081 -h /tmp"))
		nodetest.Eventually(t, 30*time.Second, "a port is reached", func() error {
			at, err := n.Runtime.PortForward(nodetest.Context(t), &cri.PortForwardRequest{
				PodSandboxId: p.ID, Port: []int32{8081},
			})
			if err != nil {
				return err
			}
			conn := nodetest.DialPort(t, at.Url, "8081")
			defer conn.Close()
			_, werr := io.WriteString(conn, "GET /none HTTP/1.0\r\n\r\n")
			got, err := io.ReadAll(conn)
			return errors.Join(werr, err, says(string(got), "404"))
		})
		c.Remove()
	})
	t.Run("figures", func(t *testing.T) {
		nodetest.Eventually(t, 30*time.Second, "the pod has used memory and processor time", func() error {
			got, err := n.Runtime.PodSandboxStats(nodetest.Context(t), &cri.PodSandboxStatsRequest{PodSandboxId: p.ID})
			if err != nil {
				return err
			}
			memory := got.GetStats().GetLinux().GetMemory().GetWorkingSetBytes().GetValue()
			cpu := got.GetStats().GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue()
			if memory < 100<<10 || cpu == 0 {
				return fmt.Errorf("%d bytes, %d ns", memory, cpu)
			}
			return nil
		})
	})
	t.Run("stop", func(t *testing.T) {
		one.Stop(30)
		if st := one.Status(); st.ExitCode != 7 || one.Stdout() != "first\nasked\n" {
			t.Errorf("%d, %q", st.ExitCode, one.Stdout())
		}
		deaf := p.Run(nodetest.Sh("trap '' TERM; echo deaf; while true; do sleep 1; done"))
		deaf.WaitLog("deaf")
		deaf.Stop(1)
		if st := deaf.Status(); st.ExitCode != 137 {
			t.Errorf("%v", st)
		}
		if got := two.Sh("echo lives; ps -o args"); !strings.Contains(got, "lives") || strings.Contains(got, "deaf") {
			t.Errorf("the other container: %q", got)
		}
	})
	t.Run("limits", func(t *testing.T) {
		_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: two.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
		})
		if err != nil {
			t.Error(err)
		}
	})
	s.remove(t, p)
}

// parent is the parent of a process, 0 if the process has ended.
func parent(t *testing.T, pid int) int {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, _ := strings.Cut(string(text), ") ")
	if f := strings.Fields(rest); len(f) > 1 {
		n, _ := strconv.Atoi(f[1])
		return n
	}
	return 0
}

func TestPodsOfShimsOutliveKeeperAndBerthd(t *testing.T) {
	s := withShims(t)
	for _, handler := range handlersOfShims {
		t.Run(handler, func(t *testing.T) { survivalInShim(t, s, handler) })
	}
}

func survivalInShim(t *testing.T, s *shimNode, handler string) {
	n := s.Node
	p := nodetest.RunPodHandler(t, n, handler)
	ends := "trap 'echo asked; exit 9' TERM; echo begun; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done"
	one, two := p.Run(nodetest.Sh(ends)), p.Run(nodetest.Sh(ends))
	three := p.Run(nodetest.Sh("while true; do echo served | nc -l -p 8080; done; sleep 3600"))
	lives := func(when string) {
		t.Helper()
		nodetest.Eventually(t, 10*time.Second, when+", the pod is reached at its address", func() error {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(p.IP(), "8080"), time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			got, err := io.ReadAll(conn)
			return errors.Join(err, says(string(got), "served"))
		})
		if got := three.Sh("echo lives"); got != "lives" {
			t.Errorf("%s: exec says %q", when, got)
		}
		for _, c := range []*nodetest.Container{one, two, three} {
			if st := c.Status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("%s: %v", when, st)
			}
		}
		if st := p.Status(); st.State != cri.PodSandboxState_SANDBOX_READY {
			t.Fatalf("%s: the pod is %v", when, st.State)
		}
	}
	lives("at first")
	if err := syscall.Kill(keeperPID(t, n), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	lives("after an upgrade of the keeper in place")
	if got := p.Output("echo new"); got != "new\n" {
		t.Errorf("a container after the upgrade says %q", got)
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	lives("after the keeper was killed")
	if got := p.Output("echo new"); got != "new\n" {
		t.Errorf("a container of the next keeper says %q", got)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	lives("after berthd was killed")
	one.Stop(30)
	if st := one.Status(); !node.OrphanEnded(st, 9) || strings.Count(one.Stdout(), "asked") != 1 {
		t.Errorf("stopped: %v", st)
	}
	whole(t, one.Stdout())
	// An end that neither sees.
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(proxyOf(t, two), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if st := two.WaitExit(); !node.OrphanEnded(st, 9) && st.Reason != model.ReasonKeeperLost { // nobody held its pidfd
		t.Errorf("ended meanwhile: %v", st)
	}
	// Whoever kills a proxy ends its container too.
	if err := syscall.Kill(proxyOf(t, three), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st := three.WaitExit(); !node.OrphanEnded(st, 137) {
		t.Errorf("its proxy was killed: %v", st)
	}
	if got := p.Output("ps -ef"); strings.Contains(got, "nc -l -p 8080") {
		t.Errorf("a container lives on after its proxy: %s", got)
	}
	s.remove(t, p)
}

// whole fails if lines of survivalInShim's containers are missing.
func whole(t *testing.T, text string) {
	t.Helper()
	i := 0
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "line ") {
			continue
		}
		if i++; line != fmt.Sprintf("line %d", i) {
			t.Fatalf("%q comes where line %d was to come", line, i)
		}
	}
	if i == 0 {
		t.Error("there are no lines")
	}
}

func TestTheEndOfAShimEndsItsPod(t *testing.T) {
	s := withShims(t)
	for _, handler := range handlersOfShims {
		t.Run(handler, func(t *testing.T) {
			p := nodetest.RunPodHandler(t, s.Node, handler)
			other := nodetest.RunPodHandler(t, s.Node, handler)
			c, lives := p.Run(nodetest.Sh("sleep 3601; :")), other.Run()
			if err := syscall.Kill(s.shimOf(t, p), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if st := c.WaitExit(); st.ExitCode != 137 {
				t.Errorf("%v", st)
			}
			nodetest.Eventually(t, 10*time.Second, "the pod is not ready", func() error {
				if st := p.Status().State; st != cri.PodSandboxState_SANDBOX_NOTREADY {
					return fmt.Errorf("it is %v", st)
				}
				return nil
			})
			if got := lives.Sh("echo lives"); got != "lives" {
				t.Errorf("the other pod says %q", got)
			}
			p.Remove()
			other.Remove()
			s.nothingLeft(t)
		})
	}
}

// TestAPodOfAShimThatHangsIsRemoved: a shim that has stopped answers no call.
func TestAPodOfAShimThatHangsIsRemoved(t *testing.T) {
	s := withShims(t)
	p := nodetest.RunPodHandler(t, s.Node, "runc-shim")
	p.Run()
	if err := syscall.Kill(s.shimOf(t, p), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, time.Minute, "it is removed", func() error {
		_, err := s.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: p.ID})
		return err
	})
	s.nothingLeft(t)
}

// TestAKeeperThatIsKilledDuringTheStartOfAShimLeavesNothing kills it at several moments of the start.
func TestAKeeperThatIsKilledDuringTheStartOfAShimLeavesNothing(t *testing.T) {
	s := withShims(t)
	for _, after := range []time.Duration{5, 40, 80, 120, 200} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			answer, err := s.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
				Config: nodetest.PodConfig(s.Node), RuntimeHandler: "runc-shim",
			})
			if err == nil { // it was started again by the next keeper, or had been started
				_, err = s.Runtime.RemovePodSandbox(nodetest.Context(t),
					&cri.RemovePodSandboxRequest{PodSandboxId: answer.PodSandboxId})
				if err != nil {
					t.Error(err)
				}
			}
		}()
		time.Sleep(after * time.Millisecond)
		if err := s.KillKeeper(); err != nil {
			t.Fatal(err)
		}
		<-done
		nodetest.Eventually(t, 20*time.Second, "nothing is left", func() error {
			for pid, line := range commandLines(t) {
				if strings.Contains(line, filepath.Join(s.State, "keeper")) && strings.Contains(line, "containerd-shim") {
					return fmt.Errorf("process %d: %s", pid, line)
				}
			}
			return nil
		})
	}
	s.nothingLeft(t)
}

// TestAnExecInAShimBeginsOnceAtMost kills the keeper at several moments of an exec, which berthd asks for again.
func TestAnExecInAShimBeginsOnceAtMost(t *testing.T) {
	s := withShims(t)
	p := nodetest.RunPodHandler(t, s.Node, "runc-shim")
	c := p.Run()
	for i, after := range []time.Duration{1, 8, 15, 22, 30} {
		done := make(chan error, 1)
		go func() {
			r, err := c.Exec(60, "sh", "-c", fmt.Sprintf("echo %d >> /tmp/begun", i))
			if err == nil && r.ExitCode != 0 {
				err = fmt.Errorf("exit code %d", r.ExitCode)
			}
			done <- err
		}()
		time.Sleep(after * time.Millisecond)
		if err := s.KillKeeper(); err != nil {
			t.Fatal(err)
		}
		err := <-done
		times := strings.Count(c.Sh("cat /tmp/begun 2>/dev/null; :"), strconv.Itoa(i))
		if times > 1 || err == nil && times != 1 {
			t.Errorf("the keeper was killed after %d ms: the command has run %d times (%v)", after, times, err)
		}
	}
	s.remove(t, p)
}

func TestAContainerOfRuncsShimThatIsShortOfMemoryIsOOMKilled(t *testing.T) {
	s := withShims(t)
	p := nodetest.RunPodHandler(t, s.Node, "runc-shim")
	limited := func(c *cri.ContainerConfig) {
		c.Linux = &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}}
	}
	c := p.Run(nodetest.Sh("tail /dev/zero"), limited)
	if st := c.WaitExit(); st.Reason != "OOMKilled" || st.ExitCode != 137 {
		t.Errorf("%v", st)
	}
	// The event comes for a container that goes on, too. What it makes is removed soon after the end of a container.
	c = p.Run(nodetest.Sh("tail /dev/zero; sleep 600"), limited)
	nodetest.Eventually(t, 10*time.Second, "the shim's event has reached the proxy of the pod's init", func() error {
		_, err := os.Lstat(filepath.Join(s.State, "keeper", "bundles", c.ID, "oom"))
		return err
	})
	s.remove(t, p)
}

func TestContainersOfRuncsShimShareThePIDNamespaceOfTheirPod(t *testing.T) {
	s := withShims(t)
	p := nodetest.RunPodHandler(t, s.Node, "runc-shim", podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
	one, two := p.Run(nodetest.Sh("sleep 3601; :")), p.Run()
	sees(t, two, "sleep 3601", "1 /berth-init")
	one.Stop(0)
	if st := two.Status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the end of one container ended the other: %v", st)
	}
	target := p.Run(nodetest.Security(func(c *cri.LinuxContainerSecurityContext) {
		c.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: two.ID}
	}))
	if got := target.Sh("readlink /proc/self/ns/pid"); got != two.Sh("readlink /proc/self/ns/pid") {
		t.Errorf("a container that is to share another's PID namespace is in %s", got)
	}
	s.remove(t, p)
}

// unmountNullNamespace unmounts the empty network namespace that runsc keeps for all that it runs with one root.
func unmountNullNamespace(t *testing.T, root string) {
	t.Helper()
	for { // two runscs that are started side by side mount it twice
		err := unix.Unmount(filepath.Join(root, "null-netns"), unix.MNT_DETACH)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
