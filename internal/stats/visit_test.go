package stats

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/cgroup"
)

// TestAVisitReadsEachFileOnce, also files that do not fit the rest of its buffer, and those that are not there.
func TestAVisitReadsEachFileOnce(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("key 1\n", bufferSize/6-10)
	content := map[string]string{"a": "1\n", "b": long, "c": long, "d": "", "e": "5\n"}
	for name, text := range content {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	v := newVisit(&cgroup.Hierarchies{Version: cgroup.V2, Unified: dir}, "/")
	defer v.close()
	for range 2 {
		d, err := v.directory("memory")
		must(t, err)
		for name, text := range content {
			if got := d.read(name); string(got) != text {
				t.Errorf("%s has %d bytes, want %d", name, len(got), len(text))
			}
		}
		if d.read("new") != nil {
			t.Error("a file is read that was not there at first")
		}
		d.close() // the visit closes it
		for name := range content {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte("other"), 0o600))
		}
		must(t, os.WriteFile(filepath.Join(dir, "new"), []byte("1"), 0o600))
	}
}

// TestDetailsHaveTheUsageOfRead, of files as a kernel makes them of version 2.
func TestDetailsHaveTheUsageOfRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpu.stat":       "usage_usec 2500\nuser_usec 2000\nsystem_usec 500\nnr_throttled 3\n",
		"memory.current": "1000000\n", "memory.events": "max 4\noom_kill 2\n",
		"memory.stat": "anon 300000\nfile 500000\ninactive_file 400000\npgfault 11\n",
		"io.stat":     "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n", "pids.current": "3\n", "pids.max": "9\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	d, err := readDetails(&cgroup.Hierarchies{Version: cgroup.V2, Unified: dir}, Target{ID: "c", Cgroup: "/"})
	must(t, err)
	if d.CPU.UsageNanoSeconds != 2500000 || *d.User != 2000000 || *d.System != 500000 || d.Throttling.Throttled != 3 {
		t.Errorf("CPU %+v, user %d, system %d, throttling %+v", d.CPU, *d.User, *d.System, d.Throttling)
	}
	if d.Memory.RSS != 300000 || *d.Cache != 500000 || *d.InactiveFile != 400000 || *d.FailCount != 4 || *d.OOMKills != 2 {
		t.Errorf("memory %+v, cache %d, %d failures, %d kills", d.Memory, *d.Cache, *d.FailCount, *d.OOMKills)
	}
	if d.IO.WriteBytes != 20 || len(d.Disks) != 1 || d.Disks[0].WriteOps != 2 || *d.Processes != 3 || *d.ThreadsMax != 9 {
		t.Errorf("I/O %+v, disks %+v, %d processes of %d", d.IO, d.Disks, *d.Processes, *d.ThreadsMax)
	}
}
