package life

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func podSecurity(edit func(*cri.LinuxSandboxSecurityContext)) nodetest.PodEdit {
	return func(c *cri.PodSandboxConfig) { edit(c.Linux.SecurityContext) }
}

func podNamespaces(options *cri.NamespaceOption) nodetest.PodEdit {
	return podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.NamespaceOptions = options })
}

func namespace(t *testing.T, pid any, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%v/ns/%s", pid, kind))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestHostnameHostsAndResolverAreThePods(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Hostname = "a-name"
		c.DnsConfig = &cri.DNSConfig{Servers: []string{"10.9.8.7", "fd00::1"}, Searches: []string{"x.test", "y.test"},
			Options: []string{"ndots:5"}}
	})
	c := p.Run()
	if got := c.Sh("hostname; cat /etc/hostname"); got != "a-name\na-name" {
		t.Errorf("hostname: %q", got)
	}
	want := "search x.test y.test\nnameserver 10.9.8.7\nnameserver fd00::1\noptions ndots:5"
	got := strings.Split(c.Sh("cat /etc/resolv.conf"), "\n")
	for _, line := range strings.Split(want, "\n") {
		found := false
		for _, have := range got {
			found = found || have == line
		}
		if !found {
			t.Errorf("resolv.conf lacks %q: %q", line, got)
		}
	}
	if got := c.Sh("echo $HOSTNAME"); got != "a-name" {
		t.Errorf("HOSTNAME is %q", got)
	}
	hosts := c.Sh("cat /etc/hosts")
	if !strings.Contains(hosts, "127.0.0.1") || !strings.Contains(hosts, "localhost") {
		t.Errorf("hosts: %q", hosts)
	}
	if !nodetest.Containerd() && (!strings.Contains(hosts, "a-name") || !strings.Contains(hosts, p.IP())) {
		t.Errorf("hosts does not name the pod: %q", hosts)
	}
	own := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(own, []byte("1.2.3.4 given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := p.Output("cat /etc/hosts",
		nodetest.Mounts(&cri.Mount{HostPath: own, ContainerPath: "/etc/hosts"})); got != "1.2.3.4 given\n" {
		t.Errorf("a mounted hosts file is not used: %q", got)
	}
}

func TestSharedMemoryIsThePods(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	one, two := p.Run(), p.Run()
	one.Sh("echo shared >/dev/shm/x")
	if got := two.Sh("cat /dev/shm/x"); got != "shared" {
		t.Errorf("got %q", got)
	}
	if got := one.Sh("df -k /dev/shm | tail -1 | awk '{print $2}'"); got != "65536" {
		t.Errorf("/dev/shm has %s KiB", got)
	}
	other := nodetest.RunPod(t, n).Run()
	if got := other.Sh("ls /dev/shm"); got != "" {
		t.Errorf("another pod sees %q", got)
	}
}

func TestNamespacesAreThePodsTheContainersOrTheNodes(t *testing.T) {
	n := nodetest.Shared(t)
	t.Run("plain", func(t *testing.T) {
		p := nodetest.RunPod(t, n)
		one, two := p.Run(), p.Run()
		a, b := hostPID(t, one), hostPID(t, two)
		for _, kind := range []string{"net", "ipc", "uts"} {
			if namespace(t, a, kind) != namespace(t, b, kind) {
				t.Errorf("%s is not shared in the pod", kind)
			}
			if namespace(t, a, kind) == namespace(t, "self", kind) {
				t.Errorf("%s is the node's", kind)
			}
		}
		for _, kind := range []string{"pid", "mnt"} {
			if namespace(t, a, kind) == namespace(t, b, kind) {
				t.Errorf("%s is shared in the pod", kind)
			}
		}
		if got := one.Sh("cat /proc/1/cmdline | tr '\\0' ' '"); got != "sleep 3600 " {
			t.Errorf("PID 1 is %q", got)
		}
	})
	t.Run("the pod's PID namespace", func(t *testing.T) {
		p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
		one, two := p.Run(nodetest.Sh("sleep 3601; :")), p.Run()
		if namespace(t, hostPID(t, one), "pid") != namespace(t, hostPID(t, two), "pid") {
			t.Error("it is not shared")
		}
		sees(t, two, "sleep 3601")
		one.Stop(0)
		if s := two.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the end of one container ended the other: %v %s", s.State, s.Reason)
		}
		// Whoever is PID 1 reaps orphans.
		two.Sh("sh -c 'sleep 0.1 & exit 0'")
		if !nodetest.Containerd() {
			two.Sh("sleep 0.5; ! ps -o stat,args | grep -q '^Z'")
		}
	})
	t.Run("the node's", func(t *testing.T) {
		p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
			Pid: cri.NamespaceMode_NODE, Ipc: cri.NamespaceMode_NODE, Network: cri.NamespaceMode_NODE,
		}), func(c *cri.PodSandboxConfig) { c.Hostname = "" })
		pid := hostPID(t, p.Run())
		for _, kind := range []string{"pid", "ipc", "net", "uts"} {
			if namespace(t, pid, kind) != namespace(t, "self", kind) {
				t.Errorf("%s is not the node's", kind)
			}
		}
		if ip := p.Status().GetNetwork().GetIp(); ip != "" && !nodetest.Containerd() {
			t.Errorf("a pod in the node's network has the address %s", ip)
		}
	})
	t.Run("a container's own IPC stays the pod's", func(t *testing.T) {
		p := nodetest.RunPod(t, n,
			podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}))
		one, two := hostPID(t, p.Run()), hostPID(t, p.Run())
		if namespace(t, one, "ipc") != namespace(t, two, "ipc") {
			t.Error("IPC is not shared")
		}
	})
	t.Run("another container's PID namespace", func(t *testing.T) {
		p := nodetest.RunPod(t, n)
		target := p.Run(nodetest.Sh("sleep 3602; :"))
		debugger := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: target.ID}
		}))
		if namespace(t, hostPID(t, target), "pid") != namespace(t, hostPID(t, debugger), "pid") {
			t.Error("it is not the target's")
		}
		sees(t, debugger, "sleep 3602")
	})
	t.Run("a target that has ended since", func(t *testing.T) {
		p := nodetest.RunPod(t, n)
		target := p.Run()
		debugger := p.Create(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: target.ID}
		}))
		target.Stop(0)
		// Its process ID may be that of a process of the node by now, whose namespace must not be joined.
		for _, want := range []string{"is not running", target.ID[:12]} {
			err := debugger.TryStart()
			if !nodetest.Containerd() {
				nodetest.WantCode(t, err, codes.FailedPrecondition)
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the start: %v", err)
			}
			target.Remove()
		}
	})
	t.Run("a target that does not exist", func(t *testing.T) {
		p := nodetest.RunPod(t, n)
		_, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: strings.Repeat("f", 64)}
		}))
		if err == nil {
			t.Error("it is accepted")
		}
	})
}

func TestSysctlsAreThePods(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "2000 3000", "kernel.shm_rmid_forced": "1",
			"net/ipv4/ip_unprivileged_port_start": "7"}
	})
	c := p.Run()
	got := c.Sh("cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced " +
		"/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if strings.Join(strings.Fields(got), " ") != "2000 3000 1 7" {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"kernel.hostname", "vm.swappiness", "net.ipv4.no_such_sysctl", "../../etc/passwd"} {
		r, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
			Config: nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{bad: "1"} }),
		})
		if err == nil {
			if !nodetest.Containerd() {
				t.Errorf("%s is accepted", bad)
			}
			_, _ = n.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
		}
	}
}

// As with containerd, which writes a pod's sysctls when the pod has its network.
func TestAPodsInterfaceHasTheSysctlsOfThePod(t *testing.T) {
	n := nodetest.Shared(t)
	sysctls := map[string]string{
		"net.ipv4.conf.eth0.rp_filter": "2", "net/ipv4/neigh/eth0/base_reachable_time_ms": "12000",
		"net.ipv4.conf.default.log_martians": "1",
	}
	user := func(c *cri.PodSandboxConfig) {
		ids := []*cri.IDMapping{{HostId: 200000, Length: 65536}}
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{
			Pid:           cri.NamespaceMode_CONTAINER,
			UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids},
		}
	}
	for name, edit := range map[string]nodetest.PodEdit{"of the node's users": func(*cri.PodSandboxConfig) {},
		"of its own users": user} {
		t.Run(name, func(t *testing.T) {
			if nodetest.Containerd() && strings.Contains(name, "own") {
				t.Skip("containerd 1.6 has no user namespaces")
			}
			p := nodetest.RunPod(t, n, edit, func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = sysctls })
			got := p.Run().Sh("cd /proc/sys/net/ipv4; cat conf/eth0/rp_filter neigh/eth0/base_reachable_time_ms " +
				"conf/default/log_martians")
			if strings.Join(strings.Fields(got), " ") != "2 12000 1" {
				t.Errorf("got %q", got)
			}
		})
	}
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
		Config: nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.conf.eth7.rp_filter": "2"}
		}),
	})
	if !nodetest.Containerd() {
		nodetest.WantCode(t, err, codes.InvalidArgument)
	}
	if err == nil || !strings.Contains(err.Error(), "eth7") {
		t.Errorf("a sysctl of an interface that the pod does not have: %v", err)
	}
}

// Hardened hosts start daemons with such an umask. With containerd, users of containers other than root then reach
// neither the root file system nor the pod's files.
func TestAnUmaskOfTheDaemonsIsNotThatOfContainers(t *testing.T) {
	nodetest.BerthOnly(t, "it makes files with the umask that it was started with")
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	n := nodetest.Start(t, node.Options{})
	for _, pid := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
		p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: pid}))
		c := p.Run(
			nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1234} }),
			nodetest.Mounts(&cri.Mount{HostPath: filepath.Join(n.Dir, "volume"), ContainerPath: "/new/volume"}),
			func(c *cri.ContainerConfig) { c.WorkingDir = "/new/work" })
		got := c.Sh("umask; pwd; stat -c '%a %n' / /new /new/volume /new/work /etc/hosts /etc/hostname /etc/resolv.conf")
		want := "0022\n/new/work\n755 /\n755 /new\n755 /new/volume\n755 /new/work\n644 /etc/hosts\n644 /etc/hostname\n" +
			"644 /etc/resolv.conf"
		if got != want {
			t.Errorf("with PID namespaces of %v: got %q, want %q", pid, got, want)
		}
	}
}

func TestCapabilitiesAreTheDefaultOnesAndWhatIsAskedFor(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	// CHOWN, DAC_OVERRIDE, FSETID, FOWNER, MKNOD, NET_RAW, SETGID, SETUID, SETFCAP, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT,
	// KILL, AUDIT_WRITE
	const defaults = "00000000a80425fb"
	for _, test := range []struct {
		claim, want string
		add, drop   []string
	}{
		{"default", defaults, nil, nil},
		{"none", "0000000000000000", nil, []string{"ALL"}},
		{"one alone", "0000000000000400", []string{"NET_BIND_SERVICE"}, []string{"ALL"}},
		{"with its long name", "0000000000000400", []string{"CAP_NET_BIND_SERVICE"}, []string{"ALL"}},
		{"one less", "00000000a80405fb", nil, []string{"NET_RAW"}},
	} {
		t.Run(test.claim, func(t *testing.T) {
			got := p.Output("grep CapBnd /proc/self/status | cut -f2",
				nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
					s.Capabilities = &cri.Capability{AddCapabilities: test.add, DropCapabilities: test.drop}
				}))
			if strings.TrimSpace(got) != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if _, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Capabilities = &cri.Capability{AddCapabilities: []string{"NO_SUCH_THING"}}
	})); err == nil && !nodetest.Containerd() {
		t.Error("an unknown capability is accepted")
	}
}

func TestAPrivilegedContainerHasTheNodesPowers(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	privileged := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true })
	c := p.Run(privileged)
	full, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var want string
	for line := range strings.Lines(string(full)) {
		if strings.HasPrefix(line, "CapBnd:") {
			want = strings.TrimSpace(line)
		}
	}
	if got := c.Sh("grep CapBnd /proc/self/status"); got != want {
		t.Errorf("got %s, want the node's %s", got, want)
	}
	c.Sh("mkdir /x && mount -t tmpfs none /x && umount /x")
	c.Sh("test -e /dev/kmsg && test -w /proc/sys/kernel/domainname && test -w /sys/kernel")
	if got := c.Sh("grep Seccomp: /proc/self/status"); !strings.HasSuffix(got, "0") {
		t.Errorf("seccomp: %s", got)
	}
	plain := nodetest.RunPod(t, n)
	if _, err := plain.TryCreate(privileged); err == nil {
		t.Error("a privileged container in a pod that is not is made")
	}
}

func TestSeccomp(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	profile := func(profile *cri.SecurityProfile) nodetest.ContainerEdit {
		return nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Seccomp = profile })
	}
	mode := "grep '^Seccomp:' /proc/self/status | cut -f2"
	if got := p.Output(mode,
		profile(&cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault})); got != "2\n" {
		t.Errorf("default: mode %q", got)
	}
	if got := p.Output(mode, profile(&cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined})); got != "0\n" {
		t.Errorf("unconfined: mode %q", got)
	}
	c := p.Run(profile(&cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}))
	if r, err := c.Exec(60, "unshare", "-U", "true"); err != nil || r.ExitCode == 0 {
		t.Errorf("the default profile lets a user namespace be made: %v, %v", r, err)
	}
	file := filepath.Join(t.TempDir(), "profile.json")
	const nomkdir = `{"defaultAction": "SCMP_ACT_ALLOW",
		"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`
	if err := os.WriteFile(file, []byte(nomkdir), 0o644); err != nil {
		t.Fatal(err)
	}
	own := p.Run(profile(&cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: file}))
	if r, err := own.Exec(60, "mkdir", "/tmp/x"); err != nil || r.ExitCode == 0 ||
		!strings.Contains(string(r.Stderr), "not permitted") {
		t.Errorf("the profile does not hold: %v, %v", r, err)
	}
}

// TestASeccompProfileThatAllowsNothingEndsItsContainer: neither its program nor what begins it can do a thing, not even
// report or exit.
func TestASeccompProfileThatAllowsNothingEndsItsContainer(t *testing.T) {
	n := nodetest.Shared(t)
	for claim, pid := range map[string]cri.NamespaceMode{
		"in a PID namespace of its own": cri.NamespaceMode_CONTAINER, "in that of its pod": cri.NamespaceMode_POD,
	} {
		t.Run(claim, func(t *testing.T) {
			p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: pid}
			})
			file := filepath.Join(t.TempDir(), "profile.json")
			if err := os.WriteFile(file, []byte(`{"defaultAction": "SCMP_ACT_ERRNO"}`), 0o644); err != nil {
				t.Fatal(err)
			}
			c := p.Create(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
				s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: file}
			}))
			ctx, cancel := context.WithTimeout(nodetest.Context(t), node.Patience(12*time.Second))
			defer cancel()
			_, err := n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
			if err != nil && ctx.Err() != nil {
				t.Fatalf("the start hangs: %v", err)
			}
			if s := c.WaitExit(); s.ExitCode == 0 {
				t.Errorf("the container has ended with 0 (%s)", s.Reason)
			}
		})
	}
}

func TestASeccompProfileThatDoesNotParseIsNamed(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for claim, content := range map[string]string{
		"not JSON": "{", "a notification without an agent": `{"defaultAction": "SCMP_ACT_ALLOW",
			"syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}]}`,
		"no action": `{"syscalls": []}`, "unknown action": `{"defaultAction": "SCMP_ACT_PERHAPS"}`,
	} {
		t.Run(claim, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "profile.json")
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			c, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
				s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: file}
			}))
			if err == nil {
				err = c.TryStart()
			}
			if err == nil {
				t.Fatal("it is accepted")
			}
			if !nodetest.Containerd() {
				nodetest.WantCode(t, err, codes.InvalidArgument)
				if !strings.Contains(err.Error(), file) {
					t.Errorf("the error does not name %s: %v", file, err)
				}
			}
		})
	}
	_, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile.json"}
	}))
	if err == nil {
		t.Error("a profile that is not there is accepted")
	}
}

func TestTheRootFileSystemIsReadOnlyWhereAskedFor(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }))
	if r, err := c.Exec(60, "touch", "/x"); err != nil || r.ExitCode == 0 ||
		!strings.Contains(string(r.Stderr), "Read-only") {
		t.Errorf("got %v, %v", r, err)
	}
	c.Sh("touch /dev/shm/x")
	writable := p.Run()
	writable.Sh("touch /x && rm /bin/sh && mkdir -p /a/b")
	if got := p.Output("ls -d /bin/sh"); got != "/bin/sh\n" {
		t.Errorf("one container's changes reach another: %q", got)
	}
}

func TestPathsAreMaskedAndReadOnly(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.MaskedPaths = []string{"/proc/kcore", "/proc/meminfo", "/etc/passwd", "/home", "/no/such/path"}
		s.ReadonlyPaths = []string{"/proc/sys", "/tmp"}
	}))
	if got := c.Sh("cat /etc/passwd /proc/meminfo; ls /home"); got != "" {
		t.Errorf("masked paths show %q", got)
	}
	for _, command := range []string{"echo x >/proc/sys/kernel/domainname", "touch /tmp/x"} {
		if r, err := c.Exec(60, "sh", "-c", command); err != nil || r.ExitCode == 0 {
			t.Errorf("%s: %v, %v", command, r, err)
		}
	}
}

func TestNoNewPrivilegesHolds(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for _, want := range []bool{true, false} {
		got := p.Output("grep NoNewPrivs /proc/self/status | cut -f2",
			nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.NoNewPrivs = want }))
		if got != map[bool]string{true: "1\n", false: "0\n"}[want] {
			t.Errorf("asked for %v, got %q", want, got)
		}
	}
}
