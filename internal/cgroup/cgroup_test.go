package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

const v1Mounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
35 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

func TestHierarchiesComeFromTheMounts(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte("cpu memory pids\n"), nil }
	h, err := Parse(strings.NewReader(v1Mounts), false, read)
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != V1 || h.Unified != "/sys/fs/cgroup/unified" || h.Has("pids") || !h.Has("cpuacct") {
		t.Errorf("v1: %+v", h)
	}
	if got, want := h.Dir("cpuacct", "/a/b"), "/sys/fs/cgroup/cpu,cpuacct/a/b"; got != want {
		t.Errorf("directory %s, want %s", got, want)
	}
	if got := h.Dir("memory", "../../etc"); got != "/sys/fs/cgroup/memory/etc" {
		t.Errorf("dots lead to %s", got)
	}
	if got := h.Dirs("/a"); len(got) != 4 || !slices.Contains(got, "/sys/fs/cgroup/systemd/a") {
		t.Errorf("directories %v", got)
	}
	h, err = Parse(strings.NewReader("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), true, read)
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != V2 || !h.Has("pids") || h.Has("hugetlb") || h.Dir("memory", "/a") != "/sys/fs/cgroup/a" {
		t.Errorf("v2: %+v", h)
	}
	if _, err := Parse(strings.NewReader(""), false, read); err == nil {
		t.Error("no hierarchy is no error")
	}
}

func TestOptionsOfTheUnifiedHierarchy(t *testing.T) {
	const v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 " +
		"rw,seclabel,nsdelegate,memory_recursiveprot\n" +
		"31 23 0:26 / /else rw - cgroup2 cgroup2 rw\n"
	for mounts, want := range map[string][]string{
		v1Mounts: {}, v1Mounts + v2: {}, v2: {"nsdelegate", "memory_recursiveprot"}, "": nil,
		"30 23 0:26 / /sys/fs/cgroup rw - cgroup2  rw,favordynmods": {"favordynmods"}, // without a source, and cut off
	} {
		if got, err := optionsOfUnified(strings.NewReader(mounts)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q has %v, %v, want %v", mounts, got, err, want)
		}
	}
	if _, err := UnifiedOptions(); err != nil {
		t.Error(err)
	}
}

// TestTheMountsOfPodsAreNotRead: of a node with a thousand pods, the kernel takes 20 ms to list all mounts.
func TestTheMountsOfPodsAreNotRead(t *testing.T) {
	for _, c := range []struct {
		name, hierarchies, later string
		reads                    bool
	}{
		{"all hierarchies are mounted", "4:name=systemd:/\n3:memory:/a:b\n1:cpu,cpuacct:/\n0::/\n", "", false},
		{"the v2 hierarchy is not known", "4:name=systemd:/\n3:memory:/\n1:cpu,cpuacct:/\n", "", false},
		{"one is mounted late", "5:pids:/\n4:name=systemd:/\n3:memory:/\n1:cpu,cpuacct:/\n0::/\n", "pids", true},
		{"one is not mounted", "5:rdma:/\n4:name=systemd:/\n3:memory:/\n1:cpu,cpuacct:/\n0::/\n", "pids", true},
		{"a list that says nothing", "", "pids", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pods := &countingReader{Reader: strings.NewReader(
				strings.Repeat("90 23 0:40 / /run/berth/pods/a rw - overlay overlay rw\n", 1000) +
					"99 23 0:99 / /mnt/late rw - cgroup cgroup rw,pids\n")}
			h, err := Parse(io.MultiReader(strings.NewReader(v1Mounts), pods), false, func(path string) ([]byte, error) {
				if path != "/proc/self/cgroup" {
					return nil, fmt.Errorf("%s is read", path)
				}
				return []byte(c.hierarchies), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := pods.reads > 1; got != c.reads {
				t.Errorf("%d reads of the mounts of pods, want more than one: %v", pods.reads, c.reads)
			}
			for _, controller := range []string{"cpu", "cpuacct", "memory", "name=systemd"} {
				if !h.Has(controller) {
					t.Errorf("no %s", controller)
				}
			}
			if want := map[bool]string{true: "/mnt/late"}[c.later == "pids"]; h.Dir("pids", "/") != want {
				t.Errorf("pids is at %q, want %q", h.Dir("pids", "/"), want)
			}
			if h.Unified == "" && strings.Contains(c.hierarchies, "0::") {
				t.Error("no v2 hierarchy")
			}
		})
	}
}

type countingReader struct {
	io.Reader
	reads int
}

func (r *countingReader) Read(p []byte) (int, error) {
	r.reads++
	return r.Reader.Read(p)
}

func TestPathsOfBothDrivers(t *testing.T) {
	for _, c := range []struct {
		spec    string
		systemd bool
		want    string
	}{
		{"/kubepods/pod1/ctr", false, "/kubepods/pod1/ctr"},
		{"relative", false, ""},
		{"kubepods-burstable-pod1.slice:berth:ctr", true,
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/berth-ctr.scope"},
		{":berth:ctr", true, "/system.slice/berth-ctr.scope"},
		{"-.slice:berth:ctr", true, "/berth-ctr.scope"},
		{"a.slice::b.slice", true, "/a.slice/b.slice"},
		{"a:b", true, ""}, {"a.scope:b:c", true, ""}, {"a--b.slice:x:y", true, ""}, {"a/b.slice:x:y", true, ""},
	} {
		got, err := Path(c.spec, c.systemd)
		if got != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q is %q (%v), want %q", c.spec, got, err, c.want)
		}
	}
}

func TestACgroupLivesInAllHierarchies(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/berth-test-cgroup-%d", os.Getpid())
	inner := name + "/pod/ctr"
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := h.Create(inner); err != nil {
			t.Fatal(err)
		}
	}
	if !h.Exists(inner) || len(h.Dirs(inner)) == 0 {
		t.Fatal("it is not there")
	}
	for _, dir := range h.Dirs(inner) {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	for _, dir := range h.Dirs(inner) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if pids, err := h.Processes(name); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := h.Remove(ctx, name); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a busy cgroup: %v", err)
	}
	end()
	if err := h.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if h.Exists(name) {
		t.Error("it is there after Remove")
	}
	if err := h.Remove(t.Context(), name); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := h.Remove(t.Context(), "/x/.."); err == nil {
		t.Error("the root was removed")
	}
}

// TestAUnifiedCgroupHandsControllersDown runs on the v2 hierarchy that stands beside v1 ones.
func TestAUnifiedCgroupHandsControllersDown(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if host.Unified == "" {
		t.Skip("no cgroup v2 hierarchy is mounted")
	}
	list, err := os.ReadFile(filepath.Join(host.Unified, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	h := &Hierarchies{Version: V2, Unified: host.Unified, available: strings.Fields(string(list))}
	name := fmt.Sprintf("/berth-test-unified-%d", os.Getpid())
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	if err := h.Create(name + "/a/b"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.Dir("", name+"/a/b/cgroup.procs")); err != nil {
		t.Error(err)
	}
	if pids, err := h.Processes(name); err != nil || len(pids) != 0 {
		t.Errorf("processes %v, %v", pids, err)
	}
}
