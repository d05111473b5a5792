package units

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

const socket = "/run/berth/berth.sock"

// must runs a program and hands back what it printed.
func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// installed is the machine's own node, as its packages would have set it up. It is gone at the end of the test.
func installed(t *testing.T) *node.Node {
	t.Helper()
	if os.Getenv("BERTH_VM") == "" {
		t.Skip("not in the virtual machine: make vm")
	}
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return connected(t, func() { must(t, "make", "-C", root, "install") }, func() {
		must(t, "make", "-C", root, "uninstall")
		must(t, "systemctl", "daemon-reload")
		for _, dir := range []string{"/etc/berth", "/var/lib/berth", "/run/berth"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

// connected is the machine's own node, as it is installed by one of the functions. The other one removes it again.
func connected(t *testing.T, install, uninstall func()) *node.Node {
	t.Helper()
	install()
	t.Cleanup(func() {
		must(t, "systemctl", "disable", "--now", "berthd", "berth-keeper")
		nodetest.Eventually(t, 20*time.Second, "berthd's slice goes with it", func() error {
			if _, err := os.Lstat("/sys/fs/cgroup/berth.slice"); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("it is still there: %v", err)
			}
			return nil
		})
		uninstall()
	})
	registry, err := node.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = registry.Close() })
	hosts := "/etc/berth/certs.d"
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := registry.HostsDir(hosts, node.RegistryHost); err != nil {
		t.Fatal(err)
	}
	must(t, "systemctl", "daemon-reload")
	must(t, "systemctl", "enable", "--now", "berth-keeper", "berthd")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n := &node.Node{
		Name: "berth", Address: "unix://" + socket, Socket: socket, LogDir: t.TempDir(),
		CgroupRoot: "/berth.slice", Systemd: true,
		Runtime: cri.NewRuntimeServiceClient(conn), Images: cri.NewImageServiceClient(conn), Conn: conn,
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("journalctl", "--no-pager", "-n", "80", "-u", "berthd", "-u", "berth-keeper").CombinedOutput()
			t.Logf("the journal:\n%s", out)
		}
		if err := n.RemoveAll(nodetest.Context(t)); err != nil {
			t.Error(err)
		}
	})
	return n
}

// property is one of a unit.
func property(t *testing.T, unit, name string) string {
	t.Helper()
	return must(t, "systemctl", "show", "--value", "-p", name, unit)
}

// changed waits until a service's process is another one than before, and answers.
func changed(t *testing.T, n *node.Node, service, before string) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, service+" is there again", func() error {
		if pid := property(t, service, "MainPID"); pid == before || pid == "0" {
			return fmt.Errorf("its process is %s, and was %s", pid, before)
		}
		if state := property(t, service, "ActiveState"); state != "active" {
			return fmt.Errorf("it is %s", state)
		}
		_, err := n.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{})
		return err
	})
}

// lives says that a container that counts is the same as before, goes on counting without a gap, and takes execs
// and clients.
func lives(t *testing.T, c *nodetest.Container, started int64, pid int) {
	t.Helper()
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != started {
		t.Fatalf("it is %v since %d, and ran since %d: %s %s", s.State, s.StartedAt, started, s.Reason, s.Message)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("its process is gone: %v", err)
	}
	lines := strings.Count(c.Log(), "\n")
	nodetest.Eventually(t, 20*time.Second, "the log goes on", func() error {
		if now := strings.Count(c.Log(), "\n"); now < lines+3 {
			return fmt.Errorf("it has %d lines, and had %d", now, lines)
		}
		return nil
	})
	if got := c.Sh("echo here"); got != "here" {
		t.Errorf("exec says %q", got)
	}
	last := counted(t, c.Stdout(), 0)
	attached(t, c, last)
}

// counted says that each line is a number and follows the one before, the first one last where that is not negative.
// It returns the last number of all.
func counted(t *testing.T, lines string, last int) int {
	t.Helper()
	for line := range strings.Lines(lines) {
		if !strings.HasSuffix(line, "\n") {
			break // more of it comes
		}
		number, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || last >= 0 && number != last+1 {
			t.Fatalf("%q follows %d", line, last)
		}
		last = number
	}
	return last
}

// attached says that a client sees the numbers go on after the given one.
func attached(t *testing.T, c *nodetest.Container, after int) {
	t.Helper()
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	defer cancel()
	r, err := c.Pod.Node.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.ID, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	var out nodetest.Buffer
	over := make(chan error, 1)
	go func() {
		_, err := nodetest.Stream(ctx, nodetest.SPDY, r.Url, remotecommand.StreamOptions{Stdout: &out})
		over <- err
	}()
	nodetest.Eventually(t, 20*time.Second, "a client that is attached sees more", func() error {
		select {
		case err := <-over:
			t.Fatalf("a client that is attached is cut off: %v", err)
		default:
		}
		if got := out.String(); strings.Count(got, "\n") < 3 {
			return fmt.Errorf("it sees %q", got)
		}
		return nil
	})
	got := out.String()
	first, err := strconv.Atoi(strings.TrimSpace(strings.SplitAfter(got, "\n")[0]))
	if err != nil || first < after {
		t.Errorf("it sees %q, and the log had come to %d before", got, after)
	}
	counted(t, got, -1)
}

const count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"

// killed kills the processes of services at one moment, and waits until systemd has started others.
func killed(t *testing.T, n *node.Node, services ...string) {
	t.Helper()
	var pids []int
	for _, service := range services {
		pid, err := strconv.Atoi(property(t, service, "MainPID"))
		if err != nil || pid == 0 {
			t.Fatalf("%s is process %d: %v", service, pid, err)
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for i, service := range services {
		changed(t, n, service, strconv.Itoa(pids[i]))
	}
}

// counting is a container that counts, and its process.
func counting(t *testing.T, p *nodetest.Pod) (*nodetest.Container, int) {
	t.Helper()
	c := p.Run(nodetest.Sh(count))
	c.WaitLog("3")
	pid, err := p.Node.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	return c, pid
}

// TestPodsOutliveTheServices: kills of berthd, of the keeper and of both at one moment, by systemd and without it,
// a reload, a restart and a stop cost a container that runs neither a line nor its execs and clients.
// What both have lost comes back from systemd's store.
func TestPodsOutliveTheServices(t *testing.T) {
	n := installed(t)
	config, err := n.Runtime.RuntimeConfig(nodetest.Context(t), &cri.RuntimeConfigRequest{})
	if err != nil || config.GetLinux().GetCgroupDriver() != cri.CgroupDriver_SYSTEMD {
		t.Errorf("the cgroup driver is %v, %v", config, err)
	}
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	started := c.Status().StartedAt

	kill := func(services ...string) {
		t.Helper()
		var before []string
		for _, service := range services {
			before = append(before, property(t, service, "MainPID"))
		}
		must(t, "systemctl", append([]string{"kill", "-s", "KILL"}, services...)...)
		for i, service := range services {
			changed(t, n, service, before[i])
		}
		lives(t, c, started, pid)
	}
	kill("berthd")
	// An exec goes on while the keeper is another.
	done := make(chan string, 1)
	go func() {
		r, err := c.Exec(600, "sh", "-c", "touch /runs; until test -e /go; do sleep 0.05; done; echo done")
		done <- fmt.Sprintf("%s%v", r.GetStdout(), err)
	}()
	nodetest.Eventually(t, 20*time.Second, "an exec runs", func() error {
		r, err := c.Exec(60, "ls", "/runs")
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("%s", r.Stderr)
		}
		return err
	})
	kill("berth-keeper")
	c.Sh("touch /go")
	if got := <-done; got != "done\n<nil>" {
		t.Errorf("an exec over a kill of the keeper says %q", got)
	}
	if stored := property(t, "berth-keeper", "NFileDescriptorStore"); stored == "0" || stored == "" {
		t.Errorf("systemd keeps %q descriptors", stored)
	}
	kill("berthd", "berth-keeper") // what is left of pipes and pidfds is in systemd's store
	for range 3 {
		killed(t, n, "berthd", "berth-keeper")
		lives(t, c, started, pid)
	}

	keeper := property(t, "berth-keeper", "MainPID")
	must(t, "systemctl", "reload", "berth-keeper")
	lives(t, c, started, pid)
	if now := property(t, "berth-keeper", "MainPID"); now != keeper {
		t.Errorf("after a reload the keeper is process %s, and was %s", now, keeper)
	}
	must(t, "systemctl", "restart", "berthd", "berth-keeper")
	lives(t, c, started, pid)
	must(t, "systemctl", "stop", "berthd", "berth-keeper")
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("a stop of the services has ended a container: %v", err)
	}
	must(t, "systemctl", "start", "berth-keeper", "berthd")
	// An escrow process had the pipes: this systemd may be one that forgets them (before version 254).
	lives(t, c, started, pid)

	ends := p.Run(nodetest.Sh("exit 7"))
	if s := ends.WaitExit(); s.ExitCode != 7 {
		t.Errorf("a new container ends with %d: %s", s.ExitCode, s.Reason)
	}
	p.Remove()
	nothingLeft(t)
}

// TestTheServicesAreStartedHoweverOftenTheyEnd: five starts in ten seconds are what systemd allows by default.
// Seen to fail without StartLimitIntervalSec in the units.
func TestTheServicesAreStartedHoweverOftenTheyEnd(t *testing.T) {
	n := installed(t)
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	started := c.Status().StartedAt
	for _, service := range []string{"berth-keeper", "berthd"} {
		before := "0"
		for kill := range 8 {
			nodetest.Eventually(t, 30*time.Second, fmt.Sprintf("%s is started after %d kills", service, kill), func() error {
				main := property(t, service, "MainPID")
				if main == before || main == "0" {
					return fmt.Errorf("it is %s", property(t, service, "ActiveState"))
				}
				before = main
				return nil
			})
			id, err := strconv.Atoi(before)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(id, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		changed(t, n, service, before)
		// In a slow machine eight starts may take more than ten seconds.
		if limit := property(t, service, "StartLimitIntervalUSec"); limit != "0" {
			t.Errorf("%s is not started again after too many starts within %s", service, limit)
		}
	}
	lives(t, c, started, pid)
	p.Remove()
	nothingLeft(t)
}

// TestAFullStoreIsSaid: systemd says so in the unit's journal when it keeps no more descriptors, and a kill
// of the keeper still costs nothing, since berthd has them all.
func TestAFullStoreIsSaid(t *testing.T) {
	n := installed(t)
	const dir = "/etc/systemd/system/berth-keeper.service.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "full.conf"), []byte("[Service]\nFileDescriptorStoreMax=3\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "systemctl", "daemon-reload")
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	nodetest.Eventually(t, 20*time.Second, "the journal says that the store is full", func() error {
		if said := must(t, "journalctl", "--no-pager", "-b", "-u", "berth-keeper"); !strings.Contains(said,
			"FileDescriptorStoreMax=3") {
			return fmt.Errorf("it says:\n%s", said)
		}
		return nil
	})
	if stored := property(t, "berth-keeper", "NFileDescriptorStore"); stored != "3" {
		t.Errorf("systemd keeps %s descriptors", stored)
	}
	started := c.Status().StartedAt
	killed(t, n, "berth-keeper")
	lives(t, c, started, pid)
	p.Remove()
	nothingLeft(t)
}

// nothingLeft says that systemd and the kernel know of no pod. The node's own slice, with berthd's claim in it,
// is there while berthd is.
func nothingLeft(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "nothing is left", func() error {
		units := must(t, "systemctl", "list-units", "--all", "--plain", "--no-legend", "berth?*.slice", "berth*.scope")
		if units != "" {
			return fmt.Errorf("systemd has these units:\n%s", units)
		}
		for pattern, want := range map[string]string{
			"/sys/fs/cgroup/berth*":                     "/sys/fs/cgroup/berth.slice",
			"/sys/fs/cgroup/berth.slice/*/cgroup.procs": "/sys/fs/cgroup/berth.slice/berthd.lock/cgroup.procs",
		} {
			if found, err := filepath.Glob(pattern); err != nil || !slices.Equal(found, []string{want}) {
				return fmt.Errorf("there are cgroups: %v (%v)", found, err)
			}
		}
		if stored := property(t, "berth-keeper", "NFileDescriptorStore"); stored != "0" {
			return fmt.Errorf("systemd keeps %s descriptors", stored)
		}
		return nil
	})
}

// TestSystemdKnowsTheLimits: what is written past systemd is lost as soon as it writes anew.
func TestSystemdKnowsTheLimits(t *testing.T) {
	n := installed(t)
	for _, parent := range []string{"", n.PodCgroup("limits")} {
		p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
			c.Linux.CgroupParent = parent
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 256 << 20, CpuPeriod: 100000, CpuQuota: 90000}
		})
		c := p.Run(func(c *cri.ContainerConfig) {
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000,
				CpuQuota: 50000, CpuShares: 512}
		})
		pid, err := n.ContainerPID(c.ID)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		scope := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(strings.TrimSpace(string(data)), "0::"))
		unit := "cri-containerd-" + c.ID + ".scope"
		if filepath.Base(scope) != unit || property(t, unit, "Delegate") != "yes" {
			t.Errorf("it is in %s, and the unit %s is delegated: %s", scope, unit, property(t, unit, "Delegate"))
		}
		check := func(when, dir, file, want string) {
			t.Helper()
			data, err := os.ReadFile(filepath.Join(dir, file))
			if got := strings.TrimSpace(string(data)); err != nil || got != want {
				t.Errorf("%s %s/%s is %q and should be %q (%v)", when, dir, file, got, want, err)
			}
		}
		all := func(when, memory, pod string) {
			t.Helper()
			check(when, scope, "memory.max", memory)
			check(when, scope, "cpu.max", "50000 100000")
			check(when, scope, "cpu.weight", "59")
			check(when, filepath.Dir(scope), "memory.max", pod)
			check(when, filepath.Dir(scope), "cpu.max", "90000 100000")
			if got := c.Sh("echo x >/dev/null && echo fine"); got != "fine" {
				t.Errorf("%s its devices say %q", when, got)
			}
		}
		all("at first", "67108864", "268435456")
		must(t, "systemctl", "daemon-reload")
		all("after a reload of systemd", "67108864", "268435456")
		if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20},
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
			PodSandboxId: p.ID, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
		}); err != nil {
			t.Fatal(err)
		}
		all("after updates", "100663296", "134217728")
		must(t, "systemctl", "daemon-reload")
		all("after updates and a reload of systemd", "100663296", "134217728")
		stats, err := n.Runtime.PodSandboxStats(nodetest.Context(t), &cri.PodSandboxStatsRequest{PodSandboxId: p.ID})
		if err != nil || stats.GetStats().GetLinux().GetMemory().GetUsageBytes().GetValue() == 0 {
			t.Errorf("the pod's stats: %v, %v", stats, err)
		}
		p.Remove()
		nothingLeft(t)
	}
}
