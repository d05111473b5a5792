package security

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks of a container on the kernel that it shares: by files of /proc and /sys, devices, cgroups, sysctls
// and system calls.

// defaultMasks asks for the masks that a kubelet asks for.
var defaultMasks = nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
	s.MaskedPaths, s.ReadonlyPaths = defaultMasked, defaultReadonly
})

// CVE-2017-16539 (Docker): root in a container removed disks of the host by writing to /proc/scsi/scsi.
// CVE-2018-10892 is the same of /proc/acpi, which commands keyboards and Bluetooth, and CVE-2020-8694
// of /sys/devices/virtual/powercap, whose measures of power show what the host computes (runc, Docker, containerd
// and podman masked it in 2023).
//
// Seen to fail with each of these paths taken out of defaultMasked in ocispec/build.go, where the kernel has it.
func TestCVE_2017_16539_FilesThatCommandTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		edits := []nodetest.ContainerEdit{withImage(intruderImage(t, n)),
			capabilities("DAC_OVERRIDE", "DAC_READ_SEARCH", "SYS_RAWIO")}
		if s.userns { // where silence means no masks
			edits = append(edits, defaultMasks)
		}
		c := s.pod(t, n).Run(edits...)
		pid := initProcess(t, c)
		procIsKept(t, pid, true)
		for _, path := range defaultMasked {
			for _, way := range []string{path, "/proc/1/root" + path, "/proc/self/cwd/.." + path} {
				if r, err := c.Exec(60, "sh", "-c", "find "+way+" -type f -exec cat {} + 2>/dev/null; cat "+way+
					" 2>/dev/null"); err != nil || len(r.Stdout) > 0 {
					t.Errorf("%s shows %.100q, %v", way, r.GetStdout(), err)
				}
			}
		}
		if got := c.Sh("/intruder writable " + strings.Join(defaultReadonly, " ") + " /sys/devices /sys/kernel"); got != "" {
			t.Errorf("it can write to:\n%s", got)
		}
	})
}

// CVE-2022-0492 (the kernel, by cgroups v1): a container that can write to a release_agent has a program
// of its choice run on the host, as root. The kernel asked for no capability in the first user namespace;
// runtimes keep the files away.
//
// Seen to fail with "ro" taken out of the mount of cgroups in ocispec/mounts.go.
func TestCVE_2022_0492_ACgroupRunsAProgramOnTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		c := s.pod(t, n).Run(withImage(intruderImage(t, n)), capabilities("DAC_OVERRIDE"))
		// With version 1 the directory of the hierarchies is a tmpfs of the container's own.
		if got := c.Sh("/intruder writable /sys/fs/cgroup | grep -vx 'MADE /sys/fs/cgroup/intruder'; :"); got != "" {
			t.Errorf("it can write to:\n%.2000s", got)
		}
		// Nor by a mount of its own.
		if r, err := c.Exec(60, "sh", "-c", "mkdir /c && for t in cgroup cgroup2; "+
			"do mount -t $t -o memory x /c || mount -t $t x /c; done 2>/dev/null; ls /c"); err != nil || len(r.Stdout) > 0 {
			t.Errorf("it has mounted a hierarchy: %.200q, %v", r.GetStdout(), err)
		}
	})
}

// GHSA-g54h-m393-cpwq (runc): a list of device rules without one that denies all was taken as a list of what is denied:
// everything else was allowed. With CAP_MKNOD, which is a default capability, a container read the host's disks.
//
// Seen to fail with the first rule left out in devices of ocispec/devices.go.
func TestGHSA_g54h_m393_cpwq_DevicesThatNobodyGave(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		// memory, ports, the kernel's log, fuse, loops, a terminal
		numbers := []string{"c:1:1", "c:1:2", "c:1:4", "c:1:11", "c:10:229", "c:10:237", "c:4:0"}
		for _, dir := range []string{"/", os.TempDir(), n.Root} {
			var st unix.Stat_t
			if err := unix.Stat(dir, &st); err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, fmt.Sprintf("b:%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
		}
		image := intruderImage(t, n)
		volumeDir := openDir(t)
		for _, edits := range [][]nodetest.ContainerEdit{{}, {nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"ALL"}}
		})}, {func(c *cri.ContainerConfig) { // a device that it is given lets no other one in
			c.Devices = []*cri.Device{{HostPath: "/dev/full", ContainerPath: "/dev/full", Permissions: "rwm"}}
		}}} {
			c := s.pod(t, n).Run(append(edits, withImage(image), volume(volumeDir, "/v"))...)
			for _, dir := range []string{"/tmp", "/dev", "/v"} {
				if got := c.Sh("mkdir -p " + dir + "; /intruder devices " + dir + " " + strings.Join(numbers,
					" ")); strings.Contains(got, "OPENED") {
					t.Errorf("in %s:\n%s", dir, got)
				}
			}
			// Its rules hold after an update of its limits too.
			if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
				ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuShares: 512},
			}); err != nil {
				t.Fatal(err)
			}
			if got := c.Sh("/intruder devices /tmp " + strings.Join(numbers, " ")); strings.Contains(got, "OPENED") {
				t.Errorf("after an update:\n%s", got)
			}
		}
	})
}

// CVE-2026-31431 (the kernel's AF_ALG, "Copy Fail"): a container changed any file that it could read,
// of other containers and of the host, by sockets of the kernel's ciphers. Others came by user namespaces
// and fsopen (CVE-2022-0185), keyrings (CVE-2016-0728), io_uring and BPF. The default profile of runtimes lets none
// of that through. (By the 32-bit socketcall, CVE-2026-123876, seccomp cannot tell the sockets apart; the profile
// of AppArmor can.)
//
// The profile is containerd's. Seen to fail with the rules for socket replaced by one without arguments, and "unshare"
// and "keyctl" added, in defaultSeccomp of ocispec/seccomp.go.
func TestCVE_2026_31431_SystemCallsThatHadHoles(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		filter := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		})
		image := intruderImage(t, n)
		p := s.pod(t, n)
		for _, who := range []nodetest.ContainerEdit{as(0, 0), as(1000, 1000)} {
			for where, got := range map[string]string{
				"a container": p.Output("/intruder calls", withImage(image), filter, who),
				"an exec":     p.Run(withImage(image), filter, who).Sh("/intruder calls"),
			} {
				if got != "" {
					t.Errorf("%s:\n%s", where, got)
				}
			}
		}
	})
}

// CVE-2022-0811 (CRI-O): a sysctl of a pod could have a "+" in its value, behind which another sysctl was set
// by the program that CRI-O ran: kernel.core_pattern, which names a program that the host runs as root.
// CVE-2022-0532 is sysctls of the host's own namespaces, in a pod that shares them.
//
// Seen to fail with the default case, and the refusals of the node's namespaces, taken out of CheckSysctls
// in ocispec/sysctl.go.
func TestCVE_2022_0811_ASysctlOfTheHost(t *testing.T) {
	n := nodetest.Shared(t)
	host := map[string]string{}
	for _, path := range []string{"kernel/core_pattern",
		"kernel/shm_rmid_forced", "kernel/modprobe", "vm/overcommit_memory",
		"net/ipv4/ip_unprivileged_port_start", "kernel/domainname", "fs/mqueue/msg_max", "user/max_user_namespaces"} {
		value, err := os.ReadFile("/proc/sys/" + path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without modules, say
		}
		if err != nil {
			t.Fatal(err)
		}
		host[path] = string(value)
	}
	shares := func(c *cri.PodSandboxConfig) {
		namespaces(c).Network, namespaces(c).Ipc = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	}
	const pattern = "|/bin/touch /tmp/owned"
	attack := func(edit nodetest.PodEdit, sysctls map[string]string) {
		t.Helper()
		config := nodetest.PodConfig(n, edit, func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = sysctls })
		r, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: config})
		// Others on this machine may change what it does not name: each node of a test switches forwarding.
		names := strings.ReplaceAll(fmt.Sprint(sysctls), ".", "_")
		for path, value := range host {
			now, err := os.ReadFile("/proc/sys/" + path)
			if err != nil || string(now) != value && strings.Contains(names, filepath.Base(path)) {
				_ = os.WriteFile("/proc/sys/"+path, []byte(value), 0)
				t.Errorf("the sysctls %q made %s of the host %q, %v", sysctls, path, now, err)
			}
		}
		if err != nil {
			nodetest.WantCode(t, err, codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied)
			return
		}
		_, _ = n.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
	}
	none := func(*cri.PodSandboxConfig) {}
	for _, sysctls := range []map[string]string{
		{"kernel.shm_rmid_forced": "1+kernel.core_pattern=" + pattern},
		{"kernel.shm_rmid_forced": "1\nkernel.core_pattern=" + pattern},
		{"kernel.shm_rmid_forced=1\nkernel.core_pattern": pattern},
		{"kernel.shm_rmid_forced+kernel.core_pattern": pattern},
		{"kernel.core_pattern": pattern}, {"kernel/core_pattern": pattern}, {"kernel.core.pattern": pattern},
		{"kernel.core_pattern.": pattern},
		{"net.ipv4.../../kernel/core_pattern": pattern}, {"net/../kernel/core_pattern": pattern},
		{"net....kernel.core_pattern": pattern},
		{"net.ipv4/../../kernel.core_pattern": pattern}, {"fs.mqueue.../../kernel/core_pattern": pattern},
		{"": "1"}, {"net": "1"},
		{"kernel.modprobe": "/tmp/evil"}, {"vm.overcommit_memory": "1"}, {"user.max_user_namespaces": "1"},
		{"KERNEL.core_pattern": pattern},
		{"/proc/sys/kernel/core_pattern": pattern}, {"../sys/kernel/core_pattern": pattern},
	} {
		attack(none, sysctls)
		attack(inUserNamespace, sysctls)
	}
	for _, sysctls := range []map[string]string{
		{"net.ipv4.ip_unprivileged_port_start": "0"}, {"net/ipv4/ip_unprivileged_port_start": "0"},
		{"kernel.shm_rmid_forced": "1"},
		{"fs.mqueue.msg_max": "11"}, {"kernel.domainname": "evil"},
	} {
		attack(shares, sysctls)
	}
	if _, err := os.Stat("/tmp/owned"); err == nil {
		t.Error("the host has run a program of the pod's choice")
	}
}

// CVE-2021-43784 (runc): the data for setting a container up went through messages whose lengths have 16 bits
// and were not checked. With 64 KiB of it, a container's author wrote the messages that follow: other namespaces,
// users and capabilities.
//
// Berth's stage has no such messages. Seen to fail with the lengths of strings in the stage's plan cut to 16 bits,
// in stage/plan.go.
func TestCVE_2021_43784_LengthsThatOverflow(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		p := s.pod(t, n)
		for _, size := range []int{65_535, 65_536, 65_537, 131_060} {
			text := strings.Repeat("\x08x\x11j", size/4+1)[:size]
			dir := openDir(t)
			var many []*cri.KeyValue
			for i := range size / 40 {
				many = append(many, &cri.KeyValue{Key: fmt.Sprintf("VARIABLE_NUMBER_%05d", i), Value: []byte("a value of 17 ch")})
			}
			for claim, edit := range map[string]nodetest.ContainerEdit{
				"an argument":    command("sh", "-c", "sleep 3600", text),
				"a variable":     func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "L", Value: []byte(text)}} },
				"many variables": func(c *cri.ContainerConfig) { c.Envs = many },
				"mounts": func(c *cri.ContainerConfig) {
					for i := range size / 2000 {
						c.Mounts = append(c.Mounts, &cri.Mount{HostPath: dir,
							ContainerPath: fmt.Sprintf("/%s/%d", strings.Repeat(strings.Repeat("d", 200)+"/", 9), i)})
					}
				},
			} {
				t.Run(fmt.Sprintf("%d bytes as %s", size, claim), func(t *testing.T) {
					startOrRefuse(t, p, func(c *nodetest.Container) {
						confined(t, c, dir)
						if sets := capabilitySets(t, c.Sh("cat /proc/1/status")); sets["CapEff"]&(1<<21) != 0 {
							t.Errorf("it has the capabilities %x", sets["CapEff"])
						}
						if r, err := c.Exec(60, "sh", "-c", "id -u", text); err != nil || string(r.Stdout) != "0\n" {
							t.Errorf("an exec with as many: %q, %v", r.GetStdout(), err)
						}
					}, edit)
				})
			}
		}
	})
}

// CVE-2018-20699 (Docker): a set of processors such as 0-4000000000 was made into a list with an element for each,
// and took all memory.
//
// Seen to fail with the sets read by a parser that lists them, in CheckResources of ocispec/resources.go.
func TestCVE_2018_20699_ASetOfFourBillionProcessors(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	same := alive(t, n)
	for _, set := range []string{"0-4000000000",
		"0-2147483647", "0-9223372036854775807", "4294967295", strings.Repeat("0,", 1<<20) + "0",
		strings.Repeat("0-100000000,", 100) + "0", "-1", "0-", "1-0", "0\n1", "../../x"} {
		for claim, edit := range map[string]func(*cri.LinuxContainerResources){
			"processors": func(r *cri.LinuxContainerResources) { r.CpusetCpus = set },
			"memory":     func(r *cri.LinuxContainerResources) { r.CpusetMems = set },
		} {
			berthd, keeper := peak(t, n, func() {
				if _, err := p.TryCreate(func(c *cri.ContainerConfig) { edit(c.Linux.Resources) }); err != nil {
					nodetest.WantCode(t, err, codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted)
				}
				resources := &cri.LinuxContainerResources{}
				edit(resources)
				if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
					ContainerId: c.ID, Linux: resources,
				}); err == nil {
					t.Errorf("%s %.20q are accepted for a container that runs", claim, set)
				}
			})
			if berthd > 64<<20 || keeper > 64<<20 {
				t.Errorf("%s %.20q: berthd took %d MiB and the keeper %d MiB", claim, set, berthd>>20, keeper>>20)
			}
		}
	}
	same()
}

// CVE-2019-14271 (Docker): `docker cp` entered a container and then loaded a library for looking users up,
// which was the container's own: it ran on the host with all capabilities. CVE-2026-41567 is the same with a program
// of the container in place of a library.
//
// The keeper is one static program, whose part in the container is C without such look-ups. The image names a library
// for everything that could be looked up, and programs that a runtime might run in it. Seen to fail with /bin/sh run
// in the container's root before an exec, in join.go of the keeper.
func TestCVE_2019_14271_ALibraryOfTheContainerIsLoaded(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		marker := openDir(t)
		const program = "#!/busybox sh\necho $0 >>/v/ran\n"
		var entries []rt.Entry
		for _, name := range []string{"newuidmap",
			"newgidmap", "modprobe", "unpigz", "xz", "tar", "gzip", "mount", "nsenter", "sh", "getent"} {
			for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin"} {
				entries = append(entries, rt.File(filepath.Join(dir, name), 0o755, program))
			}
		}
		busybox, err := os.ReadFile("/bin/busybox")
		if err != nil {
			t.Fatal(err)
		}
		nss := "passwd: evil\ngroup: evil\nhosts: evil\n"
		entries = append(entries, rt.File("busybox", 0o755, string(busybox)),
			rt.File("intruder", 0o755, string(intruderProgram(t))),
			rt.File("etc/nsswitch.conf", 0o644, nss), rt.File("etc/ld.so.preload", 0o644, "/lib/libnss_evil.so.2\n"),
			rt.File("lib/libnss_evil.so.2", 0o755, program), rt.File("etc/passwd", 0o644, rootLine))
		c := s.pod(t, n).Run(withImage(publish(t, n, rt.Layer(entries...))), command("/busybox", "sleep", "3600"),
			volume(marker, "/v"))
		for _, cmd := range [][]string{{"/busybox", "true"}, {"/busybox", "id"}} {
			if r, err := c.Exec(60, cmd...); err != nil || r.ExitCode != 0 {
				t.Errorf("%v: %v, %s", cmd, err, r.GetStderr())
			}
		}
		if _, err := n.Runtime.ContainerStats(nodetest.Context(t),
			&cri.ContainerStatsRequest{ContainerId: c.ID}); err != nil {
			t.Error(err)
		}
		// All that is mapped into the node's own programs is the node's.
		keeper, _ := n.KeeperPID()
		for _, pid := range []int{n.PID(), keeper} {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(maps), "evil") || strings.Contains(string(maps), c.ID) {
				t.Errorf("process %d has a file of the container mapped", pid)
			}
		}
		c.Stop(0)
		if ran, err := os.ReadFile(filepath.Join(marker, "ran")); err == nil {
			t.Errorf("programs of the container have been run: %s", ran)
		}
	})
}
