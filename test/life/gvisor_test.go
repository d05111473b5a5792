package life

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
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

// gVisor is a node whose runtime handler "gvisor" is a real runsc with the keys in more, and the directory of its
// state.
func gVisor(t *testing.T, more string) (n *node.Node, root string) {
	t.Helper()
	nodetest.BerthOnly(t, "containerd needs a shim for gVisor")
	runsc, err := programs.Runsc.Build(nodetest.Building(t))
	if err != nil {
		t.Fatal(err)
	}
	return gVisorAt(t, runsc, more)
}

// gVisorAt is gVisor with a program in runsc's place.
func gVisorAt(t *testing.T, runsc, more string) (n *node.Node, root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "runsc")
	t.Cleanup(func() {
		// runsc keeps an empty network namespace for all that it runs with this root; two that are started side by side
		// mount it twice.
		for {
			err := unix.Unmount(filepath.Join(root, "null-netns"), unix.MNT_DETACH)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	table := fmt.Sprintf("[runtimes.gvisor]\ntype = \"oci\"\npath = %q\nroot = %q\n", runsc, root)
	return nodetest.Start(t, node.Options{Tables: table + more}), root
}

const withSandbox = "sandbox_container = true\n"

// removeGVisor removes a pod, and fails if anything of it is left: the node's own end looks for the rest.
func removeGVisor(t *testing.T, p *nodetest.Pod, root string) {
	t.Helper()
	p.Remove()
	nothingInGVisor(t, root)
}

// nothingInGVisor fails if runsc has anything of containers.
func nothingInGVisor(t *testing.T, root string) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "runsc has nothing of containers", func() error {
		states, err := os.ReadDir(root)
		if err != nil {
			return err
		}
		for _, entry := range states {
			if entry.Name() != "null-netns" {
				return fmt.Errorf("it still has %s", entry.Name())
			}
		}
		for pid, line := range commandLines(t) {
			if strings.Contains(line, root) {
				return fmt.Errorf("process %d is left: %s", pid, line)
			}
		}
		return nil
	})
}

// sees waits until a container's list of processes has each of these texts.
func sees(t *testing.T, c *nodetest.Container, texts ...string) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "a container sees the other's processes", func() error {
		got := c.Sh("ps -o pid,args")
		for _, text := range texts {
			if !strings.Contains(got, text) {
				return fmt.Errorf("it sees %q, without %q", got, text)
			}
		}
		return nil
	})
}

// commandLines are those of all processes.
func commandLines(t *testing.T) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			out[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return out
}

// sandboxPID is the process that a container is in, by its status.
func sandboxPID(t *testing.T, c *nodetest.Container) int {
	t.Helper()
	response, err := c.Pod.Node.Runtime.ContainerStatus(nodetest.Context(t), &cri.ContainerStatusRequest{
		ContainerId: c.ID, Verbose: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(response.Info["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("no process of container %s: %v", c.ID, err)
	}
	return info.PID
}

// proxyOf is the process that stands for a container.
func proxyOf(t *testing.T, c *nodetest.Container) int {
	t.Helper()
	for pid, line := range commandLines(t) {
		if strings.HasPrefix(line, "berth-proxy runs "+c.ID+" ") {
			return pid
		}
	}
	t.Fatalf("container %s has no proxy", c.ID)
	return 0
}

func TestGVisorRunsThePodsOfItsHandler(t *testing.T) {
	n, root := gVisor(t, withSandbox)
	p := nodetest.RunPodHandler(t, n, "gvisor", func(c *cri.PodSandboxConfig) { c.Hostname = "in-gvisor" })
	one := p.Run(nodetest.Sh("trap 'echo asked; exit 7' TERM; echo first; echo second >&2\n" +
		"while true; do echo hello | nc -l -p 8080 & wait $!; done"))
	two := p.Run()
	t.Run("the kernel is gVisor's, and the pod is one", func(t *testing.T) {
		if got := two.Sh("dmesg"); !strings.Contains(got, "gVisor") {
			t.Errorf("dmesg: %q", got)
		}
		if got := two.Sh("hostname"); got != "in-gvisor" {
			t.Errorf("hostname: %q", got)
		}
		if got := two.Sh("ip addr"); !strings.Contains(got, p.IP()) {
			t.Errorf("the address %s is not there: %s", p.IP(), got)
		}
		nodetest.Eventually(t, 30*time.Second, "one container reaches the other on localhost", func() error {
			return says(two.Sh("nc 127.0.0.1 8080 </dev/null; :"), "hello")
		})
		if one, two := sandboxPID(t, one), sandboxPID(t, two); one != two {
			t.Errorf("the containers are in the sandboxes %d and %d", one, two)
		} else if namespace(t, one, "net") == namespace(t, "self", "net") {
			t.Error("the sandbox is in the node's network")
		}
	})
	t.Run("logs", func(t *testing.T) {
		nodetest.Eventually(t, 10*time.Second, "both are in the log", func() error { return says(one.Stderr(), "second") })
		if one.Stdout() != "first\n" || one.Stderr() != "second\n" {
			t.Errorf("%q, %q", one.Stdout(), one.Stderr())
		}
	})
	t.Run("an end", func(t *testing.T) {
		c := p.Run(nodetest.Sh("echo last; exit 3"))
		if s := c.WaitExit(); s.ExitCode != 3 || c.Stdout() != "last\n" {
			t.Errorf("%d %q", s.ExitCode, c.Stdout())
		}
		c.Remove()
	})
	t.Run("a proxy that is killed", func(t *testing.T) {
		dir := t.TempDir()
		c := p.Run(nodetest.Mounts(&cri.Mount{ContainerPath: "/v", HostPath: dir}),
			nodetest.Sh("while true; do echo >>/v/ticks; sleep 0.1; done"))
		ticks := func() (n int64) {
			if info, err := os.Stat(filepath.Join(dir, "ticks")); err == nil {
				n = info.Size()
			}
			return n
		}
		nodetest.Eventually(t, 10*time.Second, "it runs", func() error {
			if ticks() == 0 {
				return errors.New("no tick")
			}
			return nil
		})
		if err := syscall.Kill(proxyOf(t, c), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if s := c.WaitExit(); s.ExitCode != 137 {
			t.Errorf("it has ended with %d", s.ExitCode)
		}
		then := ticks()
		time.Sleep(500 * time.Millisecond)
		if now := ticks(); now != then {
			t.Error("the program goes on after its end was told")
		}
		c.Remove()
	})
	t.Run("a program that is not there", func(t *testing.T) {
		c := p.Create(func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"/no/such/program"}, nil })
		err := c.TryStart()
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if s := c.Status(); s.ExitCode != 127 || s.State != cri.ContainerState_CONTAINER_EXITED {
			t.Errorf("%v: %v", err, s)
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
		started := time.Now()
		_, err := two.Exec(2, "sleep", "3799")
		nodetest.WantCode(t, err, codes.DeadlineExceeded)
		if took := time.Since(started); took > 30*time.Second {
			t.Errorf("took %v", took)
		}
		nodetest.Eventually(t, 10*time.Second, "the command has ended", func() error {
			if got := two.Sh("ps -o args"); strings.Contains(got, "sleep 3799") {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		var out bytes.Buffer
		code, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY,
			execURL(t, two, &cri.ExecRequest{
				Cmd: []string{"sh", "-c", "test -t 0 && echo a terminal; exit 6"}, Stdin: true, Stdout: true, Tty: true,
			}),
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true})
		if err != nil || code != 6 || !strings.Contains(out.String(), "a terminal") {
			t.Errorf("%d, %q, %v", code, out.String(), err)
		}
	})
	t.Run("a terminal", func(t *testing.T) {
		c := p.Run(nodetest.Sh("test -t 1 && echo a terminal; exit 2"), func(c *cri.ContainerConfig) { c.Tty = true })
		if s := c.WaitExit(); s.ExitCode != 2 || !strings.Contains(c.Log(), "a terminal") {
			t.Errorf("%d, %q", s.ExitCode, c.Log())
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
		if s := c.WaitExit(); err != nil || s.ExitCode != 0 || out.String() != "typed\n" {
			t.Errorf("%v, %d, %q", err, s.ExitCode, out.String())
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
	t.Run("figures", func(t *testing.T) {
		nodetest.Eventually(t, 30*time.Second, "the pod has used memory and processor time", func() error {
			s, err := n.Runtime.PodSandboxStats(nodetest.Context(t), &cri.PodSandboxStatsRequest{PodSandboxId: p.ID})
			if err != nil {
				return err
			}
			memory := s.GetStats().GetLinux().GetMemory().GetWorkingSetBytes().GetValue()
			cpu := s.GetStats().GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue()
			if memory < 1<<20 || cpu == 0 {
				return fmt.Errorf("%d bytes, %d ns", memory, cpu)
			}
			return nil
		})
	})
	t.Run("stop", func(t *testing.T) {
		one.Stop(30)
		if s := one.Status(); s.ExitCode != 7 || one.Stdout() != "first\nasked\n" {
			t.Errorf("%d, %q", s.ExitCode, one.Stdout())
		}
		deaf := p.Run(nodetest.Sh("trap '' TERM; echo deaf; while true; do sleep 1; done"))
		deaf.WaitLog("deaf")
		deaf.Stop(1)
		if s := deaf.Status(); s.ExitCode != 137 {
			t.Errorf("%v", s)
		}
		if got := two.Sh("echo lives; ps -o args"); !strings.Contains(got, "lives") || strings.Contains(got, "deaf") {
			t.Errorf("the other container: %q", got)
		}
	})
	t.Run("what a sandbox has for all of its containers is refused for one", func(t *testing.T) {
		_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: two.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
		})
		nodetest.WantCode(t, err, codes.Unimplemented)
		_, err = p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: two.ID}
		}))
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		_, err = n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
			Config: nodetest.PodConfig(n, podNamespaces(&cri.NamespaceOption{
				UsernsOptions: userNamespace(200000, 65536),
			})),
			RuntimeHandler: "gvisor",
		})
		nodetest.WantCode(t, err, codes.FailedPrecondition)
	})
	t.Run("the node keeps its network from a pod that asks for it", func(t *testing.T) {
		p := nodetest.RunPodHandler(t, n, "gvisor", podNamespaces(&cri.NamespaceOption{Network: cri.NamespaceMode_NODE}),
			func(c *cri.PodSandboxConfig) { c.Hostname = "" })
		if got := p.Run().Sh("ip -o addr | grep -v 127.0.0.1; :"); strings.Contains(got, "inet ") {
			t.Errorf("it has addresses: %s", got)
		}
		// runsc takes the addresses of the interfaces of a pod's network away, and gives them to its own.
		for _, name := range []string{"lo", n.Bridge} {
			device, err := net.InterfaceByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if addresses, err := device.Addrs(); err != nil || len(addresses) == 0 {
				t.Errorf("%s of the node has the addresses %v (%v)", name, addresses, err)
			}
		}
		p.Remove()
	})
	removeGVisor(t, p, root)
}

func TestGVisorContainersShareThePIDNamespaceOfTheirPod(t *testing.T) {
	n, root := gVisor(t, withSandbox)
	p := nodetest.RunPodHandler(t, n, "gvisor", podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
	one, two := p.Run(nodetest.Sh("sleep 3601; :")), p.Run()
	sees(t, two, "sleep 3601", "1 /berth-init")
	left := p.Run(nodetest.Sh("setsid sleep 3602 & sleep 0.5; exit 4"))
	if s := left.WaitExit(); s.ExitCode != 4 {
		t.Errorf("it has ended with %d", s.ExitCode)
	}
	if got := two.Sh("ps -o pid,args"); strings.Contains(got, "sleep 3602") {
		t.Errorf("what a container has left outlives it: %q", got)
	}
	one.Stop(0)
	if s := two.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the end of one container ended the other: %v", s)
	}
	// Whoever is PID 1 reaps orphans.
	two.Sh("sh -c 'sleep 0.1 & exit 0'")
	two.Sh("sleep 0.5; ! ps -o stat,args | grep -q '^Z'")
	removeGVisor(t, p, root)
}

func TestGVisorPodsOutliveKeeperAndBerthd(t *testing.T) {
	n, root := gVisor(t, withSandbox)
	p := nodetest.RunPodHandler(t, n, "gvisor")
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
			if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Fatalf("%s: %v", when, s)
			}
		}
		if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_READY {
			t.Fatalf("%s: the pod is %v", when, s.State)
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
	one.WaitLog("line 1")
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	lives("after the keeper was killed")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	lives("after berthd was killed")
	one.Stop(30)
	if s := one.Status(); !node.OrphanEnded(s, 9) || strings.Count(one.Stdout(), "asked") != 1 {
		t.Errorf("stopped: %v", s)
	}
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
	if s := two.WaitExit(); !node.OrphanEnded(s, 9) && s.Reason != model.ReasonKeeperLost { // nobody held its pidfd
		t.Errorf("ended meanwhile: %v", s)
	}
	if got := three.Sh("echo lives"); got != "lives" {
		t.Errorf("the third container says %q", got)
	}
	// Whoever kills a proxy ends its container too.
	if err := syscall.Kill(proxyOf(t, three), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s := three.WaitExit(); !node.OrphanEnded(s, 137) {
		t.Errorf("its proxy was killed: %v", s)
	}
	if got := p.Output("ps -ef"); strings.Contains(got, "sleep 3600") {
		t.Errorf("a container lives on after its proxy: %s", got)
	}
	removeGVisor(t, p, root)
}

// Seen to fail where the proxy does not change its command line before the runtime's start.
func TestGVisorStartsAProgramOnceThoughTheKeeperIsKilled(t *testing.T) {
	nodetest.BerthOnly(t, "containerd needs a shim for gVisor")
	runsc, err := programs.Runsc.Build(nodetest.Building(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	slow, slowly, begun := filepath.Join(dir, "runsc"), filepath.Join(dir, "slowly"), filepath.Join(dir, "begun")
	calls := filepath.Join(dir, "calls")
	script := fmt.Sprintf("#!/bin/sh\necho \" $*\" >>%s\nif [ -e %s ]; then case \" $* \" in\n"+
		"*' start '*) touch %s; sleep 1;;\nesac; fi\nexec %s \"$@\"\n",
		calls, slowly, begun, runsc)
	if err := os.WriteFile(slow, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n, root := gVisorAt(t, slow, withSandbox)
	p := nodetest.RunPodHandler(t, n, "gvisor")
	c := p.Create(nodetest.Sh("echo started; sleep 3600; :"))
	if err := os.WriteFile(slowly, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- c.TryStart() }()
	nodetest.Eventually(t, 30*time.Second, "the start is under way", func() error {
		_, err := os.Stat(begun)
		return err
	})
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the start: %v", err)
	}
	c.WaitLog("started")
	if got := c.Sh("echo lives"); got != "lives" {
		t.Errorf("exec says %q", got)
	}
	c.Stop(0)
	if c.Stdout() != "started\n" {
		t.Errorf("the program has said %q", c.Stdout())
	}
	// Nobody may take the container for ended before it has: SIGKILL goes to it, and not to its proxy.
	called, err := os.ReadFile(calls)
	if err != nil || !strings.Contains(string(called), " kill --all "+c.ID+" 9\n") {
		t.Errorf("runsc was not asked to kill it (%v):\n%s", err, called)
	}
	removeGVisor(t, p, root)
}

// A call of runsc that a killed keeper has left under way ends with the start, and its files are removed. Seen to fail
// where these stay.
func TestGVisorLeavesNothingWhenTheKeeperIsKilledInAStart(t *testing.T) {
	n, root := gVisor(t, withSandbox)
	ctx := nodetest.Context(t)
	for i := range 12 {
		result := make(chan error, 1)
		go func() {
			response, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{
				Config: nodetest.PodConfig(n), RuntimeHandler: "gvisor",
			})
			if err == nil {
				_, err = n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: response.PodSandboxId})
			}
			result <- err
		}()
		time.Sleep(time.Duration(i) * 12 * time.Millisecond)
		if err := n.KillKeeper(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil {
			t.Logf("a kill after %d ms: %v", i*12, err)
		}
	}
	if err := n.RemoveAll(ctx); err != nil {
		t.Error(err)
	}
	nodetest.Eventually(t, 10*time.Second, "no call of runsc is left", func() error {
		for pid, line := range commandLines(t) {
			if strings.Contains(line, root) {
				return fmt.Errorf("process %d: %s", pid, line)
			}
		}
		return nil
	})
	nothingInGVisor(t, root)
}

func TestGVisorsSandboxDiesWithItsContainers(t *testing.T) {
	n, root := gVisor(t, withSandbox)
	p := nodetest.RunPodHandler(t, n, "gvisor")
	one, two := p.Run(), p.Run()
	if err := syscall.Kill(sandboxPID(t, one), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*nodetest.Container{one, two} {
		if s := c.WaitExit(); s.ExitCode != 137 {
			t.Errorf("%v", s)
		}
	}
	nodetest.Eventually(t, 10*time.Second, "the pod is not ready", func() error {
		if s := p.Status(); s.State == cri.PodSandboxState_SANDBOX_READY {
			return errors.New("it is ready")
		}
		return nil
	})
	removeGVisor(t, p, root)
}

// What runsc leaves of a sandbox that it cannot make is removed: the end of the node looks for it.
func TestGVisorsFlagsAreThoseOfTheHandler(t *testing.T) {
	n, _ := gVisor(t, withSandbox+"flags = [\"--platform=nonesuch\"]\n")
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
		Config: nodetest.PodConfig(n), RuntimeHandler: "gvisor",
	})
	if err == nil || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("a platform that is none: %v", err)
	}
}

func TestGVisorNeedsItsKey(t *testing.T) {
	n, _ := gVisor(t, "")
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
		Config: nodetest.PodConfig(n), RuntimeHandler: "gvisor",
	})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "sandbox_container = true") {
		t.Errorf("it does not name the key: %v", err)
	}
}
