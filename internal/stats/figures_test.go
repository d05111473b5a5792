package stats

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/model"
)

// TestFiguresAreThoseOfTheFiles of a cgroup v2 as a kernel makes them.
func TestFiguresAreThoseOfTheFiles(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"cpu.stat":                 "usage_usec 2500\nnr_periods 4\n",
		"cpu.pressure":             "some avg10=1.50 avg60=0.20 avg300=0.00 total=12\n",
		"memory.current":           "1000000\n",
		"memory.max":               "max\n",
		"memory.stat":              "anon 300000\nfile 500000\n",
		"memory.events":            "oom_kill 2\n",
		"pids.max":                 "odd\n",
		"io.stat":                  "8:0 rbytes=10 wios=2\nodd\n9:0 \n",
		"hugetlb.2MB.current":      "4096\n",
		"hugetlb.2MB.max":          "max\n",
		"hugetlb.2MB.events":       "max 3\n",
		"hugetlb.2MB.rsvd.current": "1\n",
	} {
		must(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	f := readFigures(&cgroup.Hierarchies{Version: cgroup.V2, Unified: root}, "/")
	want := map[string]uint64{
		"cpu.stat/usage_usec": 2500, "cpu.stat/nr_periods": 4, "memory.current": 1000000, "memory.max": math.MaxUint64,
		"memory.stat/anon": 300000, "memory.stat/file": 500000, "memory.events/oom_kill": 2, "hugetlb.2MB.current": 4096,
		"hugetlb.2MB.max": math.MaxUint64, "hugetlb.2MB.events/max": 3,
	}
	if !reflect.DeepEqual(f.Numbers, want) || !f.Unified {
		t.Errorf("%v\nnot %v", f.Numbers, want)
	}
	disks := []model.DiskFigure{
		{File: "io.stat", Major: 8, Device: DeviceName("8", "0"), Key: "rbytes", Value: 10},
		{File: "io.stat", Major: 8, Device: DeviceName("8", "0"), Key: "wios", Value: 2},
	}
	if !reflect.DeepEqual(f.Disks, disks) {
		t.Errorf("%+v\nnot %+v", f.Disks, disks)
	}
	if !reflect.DeepEqual(f.PageSizes, []string{"2MB"}) || f.CPUPressure.Some.Avg10 != 1.5 || f.IOPressure != nil {
		t.Errorf("pages %v, pressure %v, %v", f.PageSizes, f.CPUPressure, f.IOPressure)
	}
}

// TestFiguresOfACgroupOfThisMachine: each file that the kernel has is read. One that is gone has no figures, also not
// its last ones.
func TestFiguresOfACgroupOfThisMachine(t *testing.T) {
	asroot.Need(t, "cgroups")
	h := hierarchies(t)
	path := group(t, "figures")
	inside(t, path, "x=$(head -c 8000000 /dev/zero | tr '\\0' x); while :; do :; done")
	s := sampler(t, Config{Cgroups: h})
	target := []Target{{ID: "a", Cgroup: path}}
	want := []string{
		"pids.current", "cpuacct.usage", "cpu.stat/nr_periods", "memory.usage_in_bytes", "memory.stat/total_rss",
	}
	if h.Version == cgroup.V2 {
		want = []string{"pids.current", "cpu.stat/usage_usec", "memory.current", "memory.stat/anon", "memory.events/oom_kill"}
	}
	var f *model.CgroupFigures
	eventually(t, "the process uses memory", func() bool {
		f = s.Figures(t.Context(), target)[0]
		return f != nil && f.Numbers[want[4]] > 8e6 || h.Version == cgroup.V2
	})
	for _, name := range want {
		if _, ok := f.Numbers[name]; !ok {
			t.Errorf("no %s in %v", name, f.Numbers)
		}
	}
	if h.Version == cgroup.V1 {
		var sum uint64
		for _, ns := range f.PerCPU {
			sum += ns
		}
		if sum == 0 || sum > 2*f.Numbers["cpuacct.usage"]+1e9 {
			t.Errorf("%d processors used %d ns of %d", len(f.PerCPU), sum, f.Numbers["cpuacct.usage"])
		}
		for _, d := range f.Disks {
			if !strings.HasPrefix(d.File, "blkio.") || d.Key == "" {
				t.Errorf("%+v", d)
			}
		}
	}
	if f := s.Figures(t.Context(), []Target{{ID: "a", Cgroup: path + "-gone"}})[0]; f != nil {
		t.Errorf("a cgroup that is gone has %v", f)
	}
}
