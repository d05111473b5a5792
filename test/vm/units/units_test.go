package units

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
	must(t, "make", "-C", root, "install")
	t.Cleanup(func() {
		must(t, "systemctl", "disable", "--now", "berthd", "berth-keeper")
		must(t, "make", "-C", root, "uninstall")
		must(t, "systemctl", "daemon-reload")
		for _, dir := range []string{"/etc/berth", "/var/lib/berth", "/run/berth"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
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
		Name: "berth", Address: "unix://" + socket, Socket: socket, LogDir: t.TempDir(), CgroupRoot: "/berth.slice", Systemd: true,
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

// lives says that a container that counts is the same as before, goes on counting without a gap, and takes execs.
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
	last := 0
	for line := range strings.Lines(c.Stdout()) {
		number, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || number <= last {
			t.Fatalf("%q follows %d in the log", line, last)
		}
		last = number
	}
	if got := c.Sh("echo here"); got != "here" {
		t.Errorf("exec says %q", got)
	}
}

const count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"

func TestPodsOutliveTheServices(t *testing.T) {
	n := installed(t)
	config, err := n.Runtime.RuntimeConfig(nodetest.Context(t), &cri.RuntimeConfigRequest{})
	if err != nil || config.GetLinux().GetCgroupDriver() != cri.CgroupDriver_SYSTEMD {
		t.Errorf("the cgroup driver is %v, %v", config, err)
	}
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh(count))
	c.WaitLog("3")
	pid, err := n.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
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
	kill("berth-keeper")
	if stored := property(t, "berth-keeper", "NFileDescriptorStore"); stored == "0" || stored == "" {
		t.Errorf("systemd keeps %q descriptors", stored)
	}
	kill("berthd", "berth-keeper") // what is left of pipes and pidfds is in systemd's store

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
	lives(t, c, started, pid) // a custodian had the pipes; this systemd may be one that lets go of them (before version 254)

	ends := p.Run(nodetest.Sh("exit 7"))
	if s := ends.WaitExit(); s.ExitCode != 7 {
		t.Errorf("a new container ends with %d: %s", s.ExitCode, s.Reason)
	}
	p.Remove()
	nothingLeft(t)
}

// nothingLeft says that systemd and the kernel know of no pod.
func nothingLeft(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "nothing is left", func() error {
		units := must(t, "systemctl", "list-units", "--all", "--plain", "--no-legend", "berth*.slice", "berth*.scope")
		if units != "" {
			return fmt.Errorf("systemd has these units:\n%s", units)
		}
		if found, err := filepath.Glob("/sys/fs/cgroup/berth*"); err != nil || len(found) > 0 {
			return fmt.Errorf("there are cgroups: %v (%v)", found, err)
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
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512}
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
		if unit := "berth-" + c.ID + ".scope"; filepath.Base(scope) != unit || property(t, unit, "Delegate") != "yes" {
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
