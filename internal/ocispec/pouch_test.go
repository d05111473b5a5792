package ocispec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/hostpath/mutetest"
	"berth/internal/model"
)

// madeUpHierarchies are those of a made-up node.
func madeUpHierarchies(t *testing.T, unified bool, controllers string) *cgroup.Hierarchies {
	t.Helper()
	var mounts strings.Builder
	if unified {
		mounts.WriteString("30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	} else {
		for _, c := range strings.Fields(controllers) {
			mounts.WriteString("30 1 0:26 / /nowhere/" + c + " rw - cgroup cgroup rw," + c + "\n")
		}
	}
	h, err := cgroup.Parse(strings.NewReader(mounts.String()), unified, func(string) ([]byte, error) {
		return []byte(controllers), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWhatACgroupVersionLacksIsRefused(t *testing.T) {
	zero := int64(0)
	v1 := &Host{Cgroups: madeUpHierarchies(t, false, "memory pids")}
	v2 := &Host{Cgroups: madeUpHierarchies(t, true, "memory pids")}
	bare := &Host{Cgroups: madeUpHierarchies(t, false, "cpu")}
	disk := []model.ThrottleDevice{{Path: "/dev/null", Rate: 1}}
	for name, tc := range map[string]struct {
		r    model.Resources
		host *Host
		says string
	}{
		"swappiness on v2":            {model.Resources{MemorySwappiness: &zero}, v2, "memorySwappiness"},
		"swappiness without memory":   {model.Resources{MemorySwappiness: &zero}, bare, "memorySwappiness"},
		"kernel memory on v2":         {model.Resources{KernelMemory: 1}, v2, "cgroup v2"},
		"kernel memory on v1":         {model.Resources{KernelMemory: 1}, v1, "5.16"},
		"a reservation without":       {model.Resources{MemoryReservation: 1}, bare, "memoryReservation"},
		"processes without":           {model.Resources{PidsLimit: 1}, bare, "pidsLimit"},
		"throttling without":          {model.Resources{BlockIO: &model.BlockIO{ReadBps: disk}}, v1, "blockIO.readBps"},
		"throttling without io on v2": {model.Resources{BlockIO: &model.BlockIO{WriteIOPS: disk}}, v2, "blockIO.writeIOPS"},
		"a weight without":            {model.Resources{BlockIO: &model.BlockIO{Weight: 100}}, v2, "blockIO.weight"},
	} {
		if _, err := Resources(&tc.r, 0, tc.host); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsBeyondV1AreInTheSpec(t *testing.T) {
	seven := int64(7)
	h := &Host{Cgroups: madeUpHierarchies(t, false, "memory pids")}
	got, err := Resources(&model.Resources{MemoryReservation: 5, MemorySwappiness: &seven, PidsLimit: -1}, 100, h)
	if err != nil || *got.Memory.Reservation != 5 || *got.Memory.Swappiness != 7 || got.Memory.Limit != nil ||
		*got.Pids.Limit != -1 {
		t.Errorf("%+v, %v", got, err)
	}
	stored := &model.Resources{BlockIO: &model.BlockIO{Weight: 10,
		ReadBps: []model.ThrottleDevice{{Path: "/a", Rate: 1}, {Path: "/b", Rate: 2}}},
		Ulimits: []model.Ulimit{{Name: "core", Hard: 1}}}
	merged := MergeResources(stored,
		&model.Resources{BlockIO: &model.BlockIO{ReadBps: []model.ThrottleDevice{{Path: "/b", Rate: 3}}},
			Ulimits: []model.Ulimit{{Name: "nofile", Hard: 2}}, PidsLimit: 4, MemorySwappiness: &seven})
	if merged.BlockIO.Weight != 10 || merged.BlockIO.ReadBps[1].Rate != 3 || len(merged.BlockIO.ReadBps) != 2 ||
		len(merged.Ulimits) != 2 ||
		merged.PidsLimit != 4 || *merged.MemorySwappiness != 7 || stored.BlockIO.ReadBps[1].Rate != 2 ||
		len(stored.Ulimits) != 1 {
		t.Errorf("%+v of %+v", merged, stored)
	}
}

func TestUlimitsStandOverTheHandlers(t *testing.T) {
	handler := []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 1, Soft: 1}, {Type: "RLIMIT_NPROC", Hard: 9, Soft: 9}}
	got, warnings, err := Ulimits([]model.Ulimit{{Name: "core", Hard: -1, Soft: 0}}, handler, &Host{MayRaiseLimits: true})
	if err != nil || len(warnings) > 0 || len(got) != 2 || got[0].Hard != 1<<64-1 || got[0].Soft != 0 ||
		got[1] != handler[1] {
		t.Errorf("%v, %v, %v", got, warnings, err)
	}
	if handler[0].Hard != 1 {
		t.Error("the handler's own limits are written to")
	}
	for _, u := range []model.Ulimit{{Name: "NOFILE"}, {Name: ""}, {Name: "files"}, {Name: "core", Hard: 1, Soft: -1},
		{Name: "core", Hard: -2}} {
		if _, _, err := Ulimits([]model.Ulimit{u}, nil, &Host{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", u, err)
		}
	}
}

func TestLXCFSFilesAreMountedOverProc(t *testing.T) {
	dir := t.TempDir()
	b := &builder{in: Input{Sandbox: &model.SandboxConfig{LXCFS: true}}, host: &Host{LXCFS: dir}}
	if _, err := b.lxcfsMounts(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without lxcfs: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"meminfo", "uptime", "other"} {
		if err := os.WriteFile(filepath.Join(dir, "proc", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.lxcfsMounts()
	if err != nil || len(got) != 2 || got[0].Destination != "/proc/meminfo" ||
		got[0].Source != filepath.Join(dir, "proc", "meminfo") {
		t.Errorf("%v, %v", got, err)
	}
	b.in.Sandbox = &model.SandboxConfig{}
	if got, err := b.lxcfsMounts(); err != nil || got != nil {
		t.Errorf("not asked for: %v, %v", got, err)
	}
}

// TestLXCFSThatHangsHoldsUpOnlyItsContainers: a process that waits for a FUSE file system cannot be killed. Seen to
// fail where berthd itself looked at the files.
func TestLXCFSThatHangsHoldsUpOnlyItsContainers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := mutetest.Mount(t, filepath.Join(dir, "proc"))
	b := &builder{in: Input{Sandbox: &model.SandboxConfig{LXCFS: true}}, host: &Host{LXCFS: dir}}
	if got, err := b.lxcfsMounts(); err != nil || len(got) != len(lxcfsFiles) {
		t.Errorf("as long as it answers: %v, %v", got, err)
	}
	f.Mute()
	answered := make(chan error, 1)
	go func() {
		_, err := b.lxcfsMounts()
		answered <- err
	}()
	select {
	case err := <-answered:
		if !errdefs.IsUnavailable(err) {
			t.Errorf("error %v", err)
		}
	case <-time.After(time.Minute):
		f.End()
		<-answered
		t.Error("this process waits for lxcfs")
	}
}

func TestTrafficHasItsPriority(t *testing.T) {
	with, without := madeUpHierarchies(t, false, "net_prio"), madeUpHierarchies(t, false, "cpu")
	build := func(p int64, h *cgroup.Hierarchies, network string) (*builder, error) {
		b := &builder{config: &model.ContainerConfig{NetPriority: p}, host: &Host{Cgroups: h},
			in:   Input{Namespaces: Namespaces{Network: network}},
			spec: &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}}
		return b, b.netPriority()
	}
	b, err := build(5, with, "")
	if err != nil || len(b.spec.Linux.Resources.Network.Priorities) == 0 ||
		b.spec.Linux.Resources.Network.Priorities[0].Priority != 5 {
		t.Errorf("%+v, %v", b.spec.Linux.Resources.Network, err)
	}
	if b, err = build(0, without, "/ns"); err != nil || b.spec.Linux.Resources.Network != nil {
		t.Errorf("none asked for: %v", err)
	}
	for name, tc := range map[string]struct {
		h       *cgroup.Hierarchies
		network string
	}{"not mounted": {without, ""}, "v2": {madeUpHierarchies(t, true, "cpu"), ""}, "a network of its own": {with, "/ns"}} {
		if _, err := build(5, tc.h, tc.network); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "container.netPriority") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := build(1<<32, with, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
}
