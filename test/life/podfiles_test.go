package life

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// etcFiles are the files of a pod that each of its containers has.
var etcFiles = []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname"}

// TestNothingThatBerthMountsGivesRights: but for the container's own root file system, every mount of it is nosuid,
// and nodev where it is not there for devices; the pod's files are not executed either. A container that makes a setuid
// program or a device of one of these has gained nothing. It was seen to fail with the options that the pod's files
// had before, which were bind and rprivate.
func TestNothingThatBerthMountsGivesRights(t *testing.T) {
	nodetest.BerthOnly(t, "it mounts the pod's files without these options")
	n := nodetest.Shared(t)
	rights := func(readonly, privileged bool) nodetest.ContainerEdit {
		return nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.ReadonlyRootfs, s.Privileged = readonly, privileged
		})
	}
	for name, tc := range map[string]struct {
		handler  string
		pod      nodetest.PodEdit
		contain  nodetest.ContainerEdit
		readonly bool
	}{
		"plain": {"", podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}),
			rights(false, false), false},
		"read-only": {"", podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}),
			rights(true, false), true},
		"in the node's namespaces": {"", podNamespaces(&cri.NamespaceOption{Network: 2, Pid: 2, Ipc: 2}),
			rights(false, false), false},
		"in a user namespace": {"", podNamespaces(&cri.NamespaceOption{Pid: 0,
			UsernsOptions: userNamespace(200000, 65536)}), rights(false, false), false},
		"read-only in a user namespace": {"",
			podNamespaces(&cri.NamespaceOption{Pid: 1, UsernsOptions: userNamespace(200000, 65536)}), rights(true, false), true},
		"privileged": {"", podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }),
			rights(false, true), false},
		"runc": {"runc", podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}),
			rights(false, false), false},
	} {
		t.Run(name, func(t *testing.T) {
			nodetest.Handler(t, n, tc.handler)
			c := nodetest.RunPodHandler(t, n, tc.handler, tc.pod).Run(tc.contain)
			seen := map[string]bool{}
			for line := range strings.Lines(c.Sh("cat /proc/self/mountinfo")) {
				fields := strings.Fields(line)
				at, options := fields[4], strings.Split(fields[5], ",")
				seen[at] = true
				if at == "/" {
					continue
				}
				kind := fields[slices.Index(fields, "-")+1]
				if kind == "devtmpfs" || slices.Contains(options, "ro") && kind == "tmpfs" && !strings.HasPrefix(at, "/etc/") {
					continue // a device of the node's own, which is no program, or an empty directory that hides one of the kernel's
				}
				// What hides a file of the kernel's is the null device of the container's /dev.
				devices := at == "/dev" || kind == "devpts" || fields[3] == "/null"
				etc := slices.Contains(etcFiles, at)
				for option, must := range map[string]bool{"nosuid": true, "nodev": !devices, "noexec": etc || at == "/dev/shm",
					"ro": etc && tc.readonly} {
					if must && !slices.Contains(options, option) {
						t.Errorf("%s (%s) is not %s: %s", at, kind, option, fields[5])
					}
				}
			}
			for _, at := range append(slices.Clone(etcFiles), "/dev/shm", "/proc", "/sys") {
				if !seen[at] {
					t.Errorf("nothing is mounted at %s", at)
				}
			}
			if tc.readonly {
				return
			}
			for _, file := range etcFiles {
				if got := c.Sh(strings.ReplaceAll("echo '#!/bin/true' >FILE && chmod 6755 FILE && FILE 2>&1 || true",
					"FILE", file)); !strings.Contains(got, "denied") {
					t.Errorf("%s is executed: %q", file, got)
				}
			}
		})
	}
}

// hostUsage is what a pod's tmpfs takes on the node.
func hostUsage(t *testing.T, p *nodetest.Pod) (bytes uint64) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(p.Node.State, "pods", p.ID, "files"), &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		t.Fatalf("the pod's files are not on a tmpfs, but on a file system of type %x", fs.Type)
	}
	return (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
}

// TestContainersWriteToThePodsFilesWithinABound: whatever they write there, and whichever of the files it is,
// ends with ENOSPC; it takes from the pod's own /dev/shm alone, and the pod goes on: another container is made,
// and the daemon comes back. It was seen to fail with a tmpfs without a size.
func TestContainersWriteToThePodsFilesWithinABound(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "they are on its disk")
	n := nodetest.Start(t, node.Options{})
	for name, tc := range map[string]struct {
		options *cri.NamespaceOption
		most    uint64
	}{
		"a pod": {&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}, 64 << 20},
		"in a user namespace": {&cri.NamespaceOption{Pid: cri.NamespaceMode_POD,
			UsernsOptions: userNamespace(200000, 65536)}, 64 << 20},
		"a pod with the node's /dev/shm": {&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER,
			Ipc: cri.NamespaceMode_NODE}, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := nodetest.RunPod(t, n, podNamespaces(tc.options))
			c := p.Run()
			for _, file := range etcFiles {
				if fits(t, c, file, 70) {
					t.Errorf("70 MiB fit into %s", file)
				}
				if used := hostUsage(t, p); used > tc.most {
					t.Errorf("with %s full the node has given %d bytes to the pod's files", file, used)
				}
			}
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := n.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
			other := p.Run()
			if got := other.Sh("wc -c </etc/hosts"); got != c.Sh("wc -c </etc/hosts") {
				t.Errorf("a container that comes later has an /etc/hosts of %s bytes", got)
			}
			for _, file := range etcFiles {
				other.Sh(": >" + file)
			}
			other.Sh("echo 127.0.0.1 localhost >/etc/hosts")
			if got := c.Sh("cat /etc/hosts"); got != "127.0.0.1 localhost" {
				t.Errorf("with room again: %q", got)
			}
			if used := hostUsage(t, p); used > 1<<20 {
				t.Errorf("with all empty the node still gives %d bytes", used)
			}
		})
	}
}

// TestAFullSharedMemoryIsThePodsOwnAffair: full of bytes or of files, it keeps neither a container of the pod
// from being made nor another pod from running; the number of its files is bounded, too. It was seen to fail
// with a tmpfs without a number of inodes.
func TestAFullSharedMemoryIsThePodsOwnAffair(t *testing.T) {
	nodetest.BerthOnly(t, "it bounds no inodes")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	if fits(t, c, "/dev/shm/full", 70) {
		t.Error("70 MiB fit into /dev/shm")
	}
	if res, err := c.Exec(60, "sh", "-c", "echo more >>/etc/hosts && head -c 100000 /dev/zero >>/etc/hosts"); err != nil ||
		res.ExitCode == 0 {
		t.Errorf("a full /dev/shm bounds /etc/hosts no more: %v, %v", res, err)
	}
	if got := p.Run().Sh("grep -c localhost /etc/hosts"); got == "0" {
		t.Error("a container that comes later has no /etc/hosts")
	}
	c.Sh("rm /dev/shm/full")
	count, err := strconv.Atoi(
		c.Sh("i=0; while true >/dev/shm/$i; do i=$((i+1)); [ $i -lt 100000 ] || break; done 2>/dev/null; echo $i"))
	if err != nil || count < 10000 || count > 64<<20/4096 {
		t.Errorf("%d files fit into /dev/shm (%v)", count, err)
	}
	if got := p.Run().Sh("grep -c localhost /etc/hosts"); got == "0" {
		t.Error("a container that comes later has no /etc/hosts")
	}
	nodetest.RunPod(t, n).Run()
}

// TestARootInAUserNamespaceOwnsItsPodsFiles: as the root of a container without one does. It was seen to fail
// with files that belong to the node's root.
func TestARootInAUserNamespaceOwnsItsPodsFiles(t *testing.T) {
	nodetest.BerthOnly(t, "they belong to nobody")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n,
		podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536)}))
	c := p.Run()
	if got := c.Sh("stat -c '%a %u:%g' /etc/hosts /etc/resolv.conf /etc/hostname /dev/shm"); got !=
		"644 0:0\n644 0:0\n644 0:0\n1777 0:0" {
		t.Errorf("%q", got)
	}
	c.Sh("echo 192.0.2.1 added >>/etc/hosts")
	if got := p.Run().Sh("tail -n 1 /etc/hosts"); got != "192.0.2.1 added" {
		t.Errorf("another container of the pod has %q", got)
	}
}

// TestASandboxThatComesBackHasItsFilesAnew: what its containers have written into them, or filled the tmpfs with,
// is gone.
func TestASandboxThatComesBackHasItsFilesAnew(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	c := p.Run()
	before := c.Sh("cat /etc/hosts")
	if fits(t, c, "/etc/hosts", 70) {
		t.Error("70 MiB fit into /etc/hosts")
	}
	unpin(t, filepath.Join(n.State, "pods", p.ID, "ns", "net"))
	if err := started(nodetest.Context(t), nodetest.DialV1alpha2(n), p.ID); err != nil {
		t.Fatal(err)
	}
	if got := p.Run().Sh("cat /etc/hosts; df -k /dev/shm | tail -1 | awk '{print $2}'"); got != before+"\n65536" {
		t.Errorf("%q, and was %q", got, before)
	}
}

// TestAPodOfAnEarlierVersionGetsItsFilesOnATmpfs: that version kept a pod's files on the disk and its shared memory
// on a tmpfs of its own. Containers that come after the upgrade share that memory, and write to files
// that have a bound. It was seen to fail with the files not made anew.
func TestAPodOfAnEarlierVersionGetsItsFilesOnATmpfs(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "it is about Berth's own")
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	// The pod as that version would have left it.
	record := filepath.Join(n.Root, "pods", p.ID, "pod.json")
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	earlier := strings.Replace(string(data), `"sharedTmpfs":true,`, "", 1)
	if earlier == string(data) {
		t.Fatalf("the record has changed: %s", data)
	}
	earlier, _, sealed := strings.Cut(earlier, `,"_format":`)
	if sealed {
		earlier += "}"
	}
	if err := os.WriteFile(record, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(n.State, "pods", p.ID)
	if err := unix.Unmount(filepath.Join(state, "files"), 0); err != nil {
		t.Fatal(err)
	}
	shm := filepath.Join(state, "shm")
	if err := os.Mkdir(shm, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=1777,size=65536k"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shm, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start finds the files of the first
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		c := p.Run()
		if got := c.Sh("cat /dev/shm/kept && grep -c " + p.Config.Hostname +
			" /etc/hosts /etc/hostname && cat /etc/resolv.conf >/dev/null"); got != "kept/etc/hosts:1\n/etc/hostname:1" {
			t.Errorf("a container has %q", got)
		}
		if fits(t, c, "/etc/resolv.conf", 10) {
			t.Error("10 MiB fit into /etc/resolv.conf")
		}
		c.Sh(": >/etc/resolv.conf")
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	p.Remove() // and the end of the node counts what is left
}
