package cgroup

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/asroot"
)

// TestAFileGetsItsSavedTextAgain: by lines that the kernel takes, among them those that end limits of devices that had
// none before.
func TestAFileGetsItsSavedTextAgain(t *testing.T) {
	for _, c := range []struct {
		file, saved, now string
		want             []string
	}{
		{"cpuset.cpus", "\n", "0\n", []string{"\n"}},
		{"cpuset.cpus", "0-3\n", "0\n", []string{"0-3\n"}},
		{"cpuset.cpus.partition", "root invalid (CPUs are not exclusive)\n", "member\n", []string{"root\n"}},
		{"memory.high", "max\n", "4096\n", []string{"max\n"}},
		{"cpu.max", "max 100000\n", "5000 10000\n", []string{"max 100000\n"}},
		{"hugetlb.2MB.max", "max\n", "0\n", []string{"max\n"}},
		{"misc.max", "a max\nb 5\n", "a 1\nb 5\n", []string{"a max\n", "b 5\n"}},
		{"io.weight", "default 100\n", "default 50\n8:0 70\n", []string{"default 100\n", "8:0 default\n"}},
		{"io.max", "", "8:0 rbps=1 wbps=max riops=max wiops=max\n",
			[]string{"8:0 rbps=max wbps=max riops=max wiops=max\n"}},
		{"io.max", "8:0 rbps=9 wbps=max riops=max wiops=max\n", "8:0 rbps=1 wbps=max riops=max wiops=max\n",
			[]string{"8:0 rbps=9 wbps=max riops=max wiops=max\n"}},
		{"rdma.max", "", "mlx4_0 hca_handle=2 hca_object=max\n", []string{"mlx4_0 hca_handle=max hca_object=max\n"}},
	} {
		f := savedFile{"/sys/fs/cgroup/a/" + c.file, c.saved}
		if got := f.lines(c.now); !slices.Equal(got, c.want) {
			t.Errorf("%s, from %q to %q: %q, want %q", c.file, c.now, c.saved, got, c.want)
		}
	}
}

// TestAnUpdateSavesTheFilesThatItWritesTo, and none that the kernel does not have.
func TestAnUpdateSavesTheFilesThatItWritesTo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cpuset.cpus", "cpuset.mems", "memory.high", "memory.low", "hugetlb.2MB.max",
		"hugetlb.1GB.max", "io.bfq.weight", "io.max"} {
		if err := os.MkdirAll(filepath.Join(dir, "pod"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pod", name), []byte("max\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := &Hierarchies{Version: V2, Unified: dir}
	weight := uint16(5)
	for _, c := range []struct {
		update specs.LinuxResources
		want   string
	}{
		{specs.LinuxResources{}, ""},
		{specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}}, "cpuset.cpus cpuset.mems"},
		{specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}, {Pagesize: "4MB"}}},
			"hugetlb.2MB.max"},
		{specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: &weight}}, "io.bfq.weight"},
		{specs.LinuxResources{Unified: map[string]string{"memory.high": "1", "memory.nosuch": "1", "../pod/io.max": "1"}},
			"memory.high"},
	} {
		var got []string
		for _, f := range h.Save("/pod", &c.update).files {
			got = append(got, filepath.Base(f.path))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: saved are %q, want %q", c.update, got, c.want)
		}
	}
}

// TestSystemdHasThePropertiesOfTheSavedFiles: systemd would write those of a refused update again.
func TestSystemdHasThePropertiesOfTheSavedFiles(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       map[string]any
	}{
		{"cpuset.cpus", "", map[string]any{"AllowedCPUs": []byte{}}},
		{"cpuset.mems", "0,8", map[string]any{"AllowedMemoryNodes": []byte{1, 1}}},
		{"memory.high", "max", map[string]any{"MemoryHigh": uint64(math.MaxUint64)}},
		{"memory.low", "4096", map[string]any{"MemoryLow": uint64(4096)}},
		{"pids.max", "7", map[string]any{"TasksMax": uint64(7)}},
		{"cpu.max", "max 100000", map[string]any{"CPUQuotaPerSecUSec": uint64(math.MaxUint64),
			"CPUQuotaPeriodUSec": uint64(100000)}},
		{"cpu.max", "50000 100000", map[string]any{"CPUQuotaPerSecUSec": uint64(500000),
			"CPUQuotaPeriodUSec": uint64(100000)}},
		{"memory.oom.group", "1", nil}, {"memory.high", "odd", nil},
	} {
		if got := unitProperties(c.file, c.text); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %q: %v, want %v", c.file, c.text, got, c.want)
		}
	}
}

// TestTheKernelTakesWhatWasSaved of a CPU set that processes are in, of either version. On v2, it takes no empty set.
func TestTheKernelTakesWhatWasSaved(t *testing.T) {
	asroot.Need(t, "a cgroup")
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if !h.Has("cpuset") {
		t.Skip("no cpuset controller")
	}
	const name = "/berth-test-saved"
	if err := h.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Remove(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	dir := h.Dir("cpuset", name)
	cpus := filepath.Join(dir, "cpuset.effective_cpus")
	if h.Version == V2 {
		cpus = filepath.Join(dir, "cpuset.cpus.effective")
	}
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(cpus)
		if err != nil {
			t.Skip(err) // v2, and the controller is not on in the root
		}
		return strings.TrimSpace(string(text))
	}
	before := read()
	update := &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0", Mems: "900"}}
	saved := h.Save(name, update)
	if h.Version == V1 { // it takes no process before it has CPUs and memory nodes
		if err := h.Limit(name, &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0", Mems: "0"}}); err != nil {
			t.Fatal(err)
		}
	}
	sleeps := exec.Command("sleep", "infinity")
	if err := sleeps.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeps.Process.Kill()
		_ = sleeps.Wait()
	})
	process := strconv.Itoa(sleeps.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(process), 0); err != nil {
		t.Fatal(err)
	}
	if err := h.Limit(name, update); err == nil {
		t.Error("the kernel has a memory node 900")
	}
	if got := read(); got != "0" {
		t.Fatalf("the refused update left %q, so this test says nothing", got)
	}
	if err := saved.Restore(t.Context(), false); err != nil {
		t.Error(err)
	}
	if got := read(); got != before {
		t.Errorf("the CPUs are %q, and were %q", got, before)
	}
	if err := (*Saved)(nil).Restore(t.Context(), true); err != nil {
		t.Error(err)
	}
}

// TestAnEmptyCPUSetBecomesAllWhereProcessesAreIn: the kernel refuses to empty it then (ENOSPC). On v1, a directory that
// is made without Create has an empty set, as each cgroup has on v2. Seen to fail where the empty set alone was
// written.
func TestAnEmptyCPUSetBecomesAllWhereProcessesAreIn(t *testing.T) {
	asroot.Need(t, "a cgroup")
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != V1 || !h.Has("cpuset") {
		t.Skip("needs cgroup v1 with cpuset")
	}
	const name = "/berth-test-empty"
	dir := h.Dir("cpuset", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sleeps := exec.Command("sleep", "infinity")
	t.Cleanup(func() {
		if sleeps.Process != nil {
			_ = sleeps.Process.Kill()
			_ = sleeps.Wait()
		}
		if err := h.Remove(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	saved := h.Save(name, &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}})
	for _, f := range saved.files {
		if strings.TrimSpace(f.text) != "" {
			t.Skipf("%s has %q from the beginning", f.path, f.text)
		}
		if err := os.WriteFile(f.path, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := sleeps.Start(); err != nil {
		t.Fatal(err)
	}
	process := strconv.Itoa(sleeps.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(process), 0); err != nil {
		t.Fatal(err)
	}
	if err := saved.Restore(t.Context(), false); err != nil {
		t.Error(err)
	}
	want, err := os.ReadFile(possible["cpuset.cpus"])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus")); err != nil || string(got) != string(want) {
		t.Errorf("the CPUs are %q, %v, and all are %q", got, err, want)
	}
}
