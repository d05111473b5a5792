package security

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// defaultMasked and defaultReadonly are the paths that a container without a wish has masked and read-only.
var (
	defaultMasked = []string{"/proc/acpi",
		"/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware"}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// confined looks at a running container from the host: it has no part of the host's file systems but the volumes
// that it was given, its /proc is one and what is masked there is masked, and it holds no descriptor of the host's.
func confined(t *testing.T, c *nodetest.Container, volumes ...string) {
	t.Helper()
	pid := initProcess(t, c)
	onlyOwnMounts(t, c, pid, volumes)
	// In a user namespace nothing is masked unless asked for: the kernel keeps those files from such a root.
	masks := c.Config.Linux.SecurityContext.NamespaceOptions.GetUsernsOptions() == nil
	procIsKept(t, pid, masks)
	noDescriptors(t, pid)
	var own unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/root/", pid), &own); err != nil {
		t.Fatal(err)
	}
	roots := rootsOf(t, c)
	if !slices.ContainsFunc(roots, func(root string) bool {
		var st unix.Stat_t
		return unix.Stat(fmt.Sprintf("/proc/%d/root%s", whereRootsAre(c), root), &st) == nil &&
			st.Dev == own.Dev && st.Ino == own.Ino
	}) {
		t.Errorf("the container's root, %d:%d, is none of the node's mounts for it: %q", own.Dev, own.Ino, roots)
	}
}

// whereRootsAre is a process that has the root file systems of containers: the keeper, which may have a mount namespace
// of Berth's own, or this process, where there is no keeper.
func whereRootsAre(c *nodetest.Container) int {
	if keeper, there := c.Pod.Node.KeeperPID(); there {
		return keeper
	}
	return os.Getpid()
}

// rootsOf are the mount points of overlays that the node has for a container.
func rootsOf(t *testing.T, c *nodetest.Container) (points []string) {
	t.Helper()
	mounts, err := mountsOf(whereRootsAre(c))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.FSType == "overlay" && strings.Contains(m.Mountpoint+"/", "/"+c.ID+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}

// mountsOf are the mounts that a process has.
func mountsOf(pid int) ([]*mountinfo.Info, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// onlyOwnMounts: what is mounted of a file system of the host is below the node's directories or one of the volumes.
func onlyOwnMounts(t *testing.T, c *nodetest.Container, pid int, volumes []string) {
	t.Helper()
	mounts, err := mountsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	n := c.Pod.Node
	allowed := append([]string{n.Root, n.State, n.LogDir}, volumes...)
	for _, m := range mounts {
		switch m.FSType {
		case "overlay", "tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs":
			asked := slices.ContainsFunc(c.Config.Mounts, func(a *cri.Mount) bool {
				return a.Image != nil && a.ContainerPath == m.Mountpoint
			})
			if m.FSType == "overlay" && m.Mountpoint != "/" && m.Root == "/" && !asked {
				t.Errorf("a whole root file system is mounted at %s", m.Mountpoint)
			}
			continue
		}
		inside := false
		for _, dir := range allowed {
			inside = inside || m.Root == dir || strings.HasPrefix(m.Root, dir+"/")
		}
		if !inside {
			t.Errorf("%s of the host's %s is mounted at %s", m.Root, m.FSType, m.Mountpoint)
		}
	}
}

func procIsKept(t *testing.T, pid int, masks bool) {
	t.Helper()
	mounts, err := mountsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	proc := 0
	for _, m := range mounts {
		switch {
		case m.Mountpoint == "/proc":
			proc++
			if m.FSType != "proc" || m.Root != "/" {
				t.Errorf("on /proc is %s of a %s", m.Root, m.FSType)
			}
		case strings.HasPrefix(m.Mountpoint, "/proc/"):
			below := strings.TrimPrefix(m.Mountpoint, "/proc")
			readonly := strings.Contains(","+m.Options+",", ",ro,")
			var st unix.Stat_t
			null := unix.Stat(fmt.Sprintf("/proc/%d/root%s", pid, m.Mountpoint), &st) == nil &&
				st.Mode&unix.S_IFMT == unix.S_IFCHR &&
				st.Rdev == unix.Mkdev(1, 3)
			if !(m.FSType == "proc" && m.Root == below && readonly) &&
				!(m.FSType == "tmpfs" && m.Root == "/" && readonly) && !null {
				t.Errorf("on %s is %s of a %s (%s)", m.Mountpoint, m.Root, m.FSType, m.Options)
			}
		}
	}
	if proc != 1 {
		t.Errorf("there are %d mounts on /proc", proc)
	}
	if !masks {
		return
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	for _, p := range defaultMasked {
		isMasked(t, root, p)
	}
	for _, p := range defaultReadonly {
		var fs unix.Statfs_t
		err := unix.Statfs(root+p, &fs)
		if err != nil && err != unix.ENOENT {
			t.Errorf("%s: %v", p, err)
		}
		if err == nil && fs.Flags&unix.ST_RDONLY == 0 {
			t.Errorf("%s can be written to", p)
		}
	}
}

// isMasked: there is the null device, or an empty directory that cannot be written to, or nothing.
func isMasked(t *testing.T, root, p string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(root+p, &st); err != nil {
		if err != unix.ENOENT {
			t.Errorf("%s: %v", p, err)
		}
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		if st.Rdev != unix.Mkdev(1, 3) {
			t.Errorf("%s is masked by the device %d:%d", p, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
	case unix.S_IFDIR:
		entries, err := os.ReadDir(root + p)
		var fs unix.Statfs_t
		if serr := unix.Statfs(root+p, &fs); err != nil || serr != nil || len(entries) > 0 || fs.Flags&unix.ST_RDONLY == 0 {
			t.Errorf("the directory %s is not masked: %d entries, %v, %v", p, len(entries), err, serr)
		}
	default:
		t.Errorf("%s is not masked: mode %o", p, st.Mode)
	}
}

// noDescriptors: a program of busybox has its standard streams, which are pipes, terminals or the null device,
// and nothing else.
func noDescriptors(t *testing.T, pid int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		var st unix.Stat_t
		if err != nil || unix.Stat(filepath.Join(dir, e.Name()), &st) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		stream := e.Name() == "0" || e.Name() == "1" || e.Name() == "2"
		if !stream || kind != unix.S_IFIFO && (kind != unix.S_IFCHR ||
			st.Rdev != unix.Mkdev(1, 3) && unix.Major(st.Rdev) != 136) {
			t.Errorf("it has descriptor %s: %s", e.Name(), to)
		}
	}
}
