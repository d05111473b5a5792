package smoke

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

// inside skips what needs the virtual machine.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("BERTH_VM") == "" {
		t.Skip("not in the virtual machine: make vm-smoke")
	}
}

// TestTheMachineIsWhatItIsFor: without this, all that follows would show nothing.
func TestTheMachineIsWhatItIsFor(t *testing.T) {
	inside(t)
	for file, want := range map[string]string{
		"/sys/fs/cgroup/cgroup.controllers":       "memory",
		"/sys/module/apparmor/parameters/enabled": "Y",
		"/proc/1/comm":                              "systemd",
		"/proc/mounts":                              "prjquota",
		"/sys/kernel/security/apparmor/profiles":    "",
		"/sys/fs/cgroup/system.slice/cgroup.events": "populated 1",
	} {
		if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %q, %v; it should say %q", file, data, err, want)
		}
	}
}

// cgroupOf is the directory of a container's cgroup.
func cgroupOf(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	pid, err := c.Pod.Node.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	relative, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "0::")
	if !ok {
		t.Fatalf("the cgroup of %d is %q", pid, data)
	}
	return filepath.Join("/sys/fs/cgroup", relative)
}

// TestAPodLivesOnCgroupV2 is the life of a pod under each driver: limits, exec, an OOM kill, berthd killed and started
// again, and nothing left.
func TestAPodLivesOnCgroupV2(t *testing.T) {
	inside(t)
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			n := nodetest.Start(t, node.Options{CgroupDriver: driver})
			p := nodetest.RunPod(t, n)
			c := p.Run(func(c *cri.ContainerConfig) {
				c.Linux.Resources = &cri.LinuxContainerResources{
					CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 64 << 20,
					Unified: map[string]string{"pids.max": "50", "memory.low": "1048576"},
				}
			})
			dir := cgroupOf(t, c)
			if want := filepath.Join("/sys/fs/cgroup", p.Config.Linux.CgroupParent); filepath.Dir(dir) != want {
				t.Errorf("it lives in %s, which is not in %s", dir, want)
			}
			for file, want := range map[string]string{
				"memory.max": "67108864", "cpu.max": "50000 100000", "cpu.weight": "59", "pids.max": "50", "memory.low": "1048576",
			} {
				data, err := os.ReadFile(filepath.Join(dir, file))
				if got := strings.TrimSpace(string(data)); err != nil || got != want {
					t.Errorf("%s is %q from outside, and should be %s (%v)", file, got, want, err)
				}
				if got := c.Sh("cat /sys/fs/cgroup/" + file); got != want {
					t.Errorf("%s is %q from inside, and should be %s", file, got, want)
				}
			}
			if got := c.Sh("cat /proc/1/cgroup"); got != "0::/" {
				t.Errorf("it sees its cgroup as %q", got)
			}

			killed := p.Run(nodetest.Sh("exec dd if=/dev/zero of=/dev/null bs=200000000 count=1"), func(c *cri.ContainerConfig) {
				c.Linux.Resources.MemoryLimitInBytes = 32 << 20
			})
			if s := killed.WaitExit(); s.Reason != "OOMKilled" || s.ExitCode == 0 {
				t.Errorf("it wanted more than its memory and is reported as %s, code %d", s.Reason, s.ExitCode)
			}

			ends := p.Run(nodetest.Sh("until test -e /end; do sleep 0.1; done; exit 7"))
			started := c.Status().StartedAt
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			pid, err := n.ContainerPID(ends.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/end", pid), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := n.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
			if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING || s.StartedAt != started {
				t.Errorf("after a kill of berthd it is %v since %d, and ran since %d", s.State, s.StartedAt, started)
			}
			if s := ends.WaitExit(); s.ExitCode != 7 {
				t.Errorf("what ended without berthd is reported with code %d: %s", s.ExitCode, s.Reason)
			}
			if got := c.Sh("echo still here"); got != "still here" {
				t.Errorf("exec says %q", got)
			}
			p.Remove()
			if left, err := n.Settled(30 * time.Second); err != nil || left.Count() > 0 {
				t.Errorf("left behind (%v):\n%s", err, left)
			}
		})
	}
}

// TestDevicesOutliveAReloadOfSystemd: systemd writes the rules of devices anew for all its units when it reads its
// files again, and when it executes itself. What a container was given stays, and nothing comes to it, also after an
// update of its limits. (Containers of other runtimes have lost GPUs like this.)
func TestDevicesOutliveAReloadOfSystemd(t *testing.T) {
	inside(t)
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			n := nodetest.Start(t, node.Options{CgroupDriver: driver})
			p := nodetest.RunPod(t, n)
			c := p.Run(func(c *cri.ContainerConfig) {
				c.Devices = []*cri.Device{{HostPath: "/dev/loop-control", ContainerPath: "/dev/given", Permissions: "rw"}}
			})
			c.Sh("mknod /fuse c 10 229")
			check := func(when string) {
				t.Helper()
				const try = "for d in /dev/given /fuse /dev/null; do (: <>$d) 2>/dev/null && echo opens || echo denied; done"
				if got := c.Sh(try); got != "opens\ndenied\nopens" {
					t.Errorf("%s: what was given, what was not, and /dev/null: %q", when, got)
				}
			}
			systemctl := func(word string) {
				t.Helper()
				if out, err := exec.Command("systemctl", word).CombinedOutput(); err != nil {
					t.Fatalf("systemctl %s: %v: %s", word, err, out)
				}
			}
			check("at first")
			systemctl("daemon-reload")
			check("after a reload")
			_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
				ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 100 << 20},
			})
			if err != nil {
				t.Fatal(err)
			}
			check("after an update")
			systemctl("daemon-reload")
			check("after an update and a reload")
			systemctl("daemon-reexec")
			check("after systemd has executed itself")
		})
	}
}

// TestAPrivilegedContainerLeavesTheOptionsOfCgroups: it is in the node's cgroup namespace, where a mount of the
// hierarchy sets the options of all mounts of it. They were gone after the first such container.
func TestAPrivilegedContainerLeavesTheOptionsOfCgroups(t *testing.T) {
	inside(t)
	options := func() string {
		t.Helper()
		out, err := exec.Command("findmnt", "--noheadings", "--output", "FS-OPTIONS", "/sys/fs/cgroup").CombinedOutput()
		if err != nil {
			t.Fatalf("findmnt: %v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	before := options()
	if !strings.Contains(before, "nsdelegate") || !strings.Contains(before, "memory_recursiveprot") {
		t.Fatalf("systemd has mounted cgroups with %q", before)
	}
	n := nodetest.Start(t, node.Options{})
	for _, handler := range []string{"", "runc"} {
		p := nodetest.RunPodHandler(t, n, handler, func(c *cri.PodSandboxConfig) {
			c.Linux.SecurityContext.Privileged = true
		})
		c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }))
		c.Sh("test -w /sys/fs/cgroup/cgroup.procs")
		if after := options(); after != before {
			t.Errorf("handler %q: the node's cgroups had %q, and have %q", handler, before, after)
		}
	}
}

// TestAppArmor: a profile that denies a write denies it, in the container and in an exec; the default profile is there;
// a profile that is not loaded is refused by name.
func TestAppArmor(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	const profile = "berth-smoke-deny-write"
	file := filepath.Join(t.TempDir(), profile)
	text := "profile " + profile + " flags=(attach_disconnected) {\n  file,\n  signal,\n  deny /tmp/** w,\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("apparmor_parser", "-r", file).CombinedOutput(); err != nil {
		t.Fatalf("apparmor_parser: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("apparmor_parser", "-R", file).CombinedOutput(); err != nil {
			t.Errorf("apparmor_parser -R: %v: %s", err, out)
		}
	})
	p := nodetest.RunPod(t, n)
	confined := func(profile *cri.SecurityProfile) nodetest.ContainerEdit {
		return nodetest.Security(func(c *cri.LinuxContainerSecurityContext) { c.Apparmor = profile })
	}
	localhost := func(name string) *cri.SecurityProfile {
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: name}
	}
	const try = "mkdir -p /tmp; echo x >/tmp/file && echo written || echo denied; cat /proc/self/attr/current"

	c := p.Run(confined(localhost(profile)), nodetest.Sh(try+"; sleep 3600"))
	c.WaitLog("(enforce)")
	if got := c.Stdout(); got != "denied\n"+profile+" (enforce)\n" {
		t.Errorf("under the profile a write says %q", got)
	}
	if got := c.Sh(try); got != "denied\n"+profile+" (enforce)" {
		t.Errorf("under the profile a write of an exec says %q", got)
	}
	for name, want := range map[string]*cri.SecurityProfile{
		"berth-default (enforce)": {ProfileType: cri.SecurityProfile_RuntimeDefault},
		"unconfined":              {ProfileType: cri.SecurityProfile_Unconfined},
	} {
		if got := p.Output(try, confined(want)); got != "written\n"+name+"\n" {
			t.Errorf("as %v it says %q", want.ProfileType, got)
		}
	}
	if got := p.Output(try); got != "written\nberth-default (enforce)\n" {
		t.Errorf("with no profile named it says %q", got)
	}

	// As aa-teardown and aa-remove-unknown do.
	unload := func() {
		const remove = "/sys/kernel/security/apparmor/.remove"
		if err := os.WriteFile(remove, []byte("berth-default"), 0); err != nil {
			t.Fatal(err)
		}
	}
	unload()
	if got := p.Output(try); got != "written\nberth-default (enforce)\n" {
		t.Errorf("after the default profile was unloaded it says %q", got)
	}
	running := p.Run()
	unload()
	if got := running.Sh(try); got != "written\nberth-default (enforce)" {
		t.Errorf("after the default profile was unloaded an exec says %q", got)
	}

	c, err := p.TryCreate(confined(localhost("berth-no-such-profile")))
	if err == nil {
		err = c.TryStart()
	}
	nodetest.WantCode(t, err, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound)
	// A spec of Kubernetes' test/e2e_node looks for the first word.
	want := `apparmor profile "berth-no-such-profile" is not loaded`
	if err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not say that the %s: %v", want, err)
	}
}
