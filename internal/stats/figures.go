package stats

import (
	"context"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/cgroup"
	"berth/internal/model"
)

// Figures reads the files of cgroups, in the order given, within the same bounds as Containers. A nil entry is a cgroup
// that is not there, or has never answered; one that has not answered in time has its last figures.
func (s *Sampler) Figures(ctx context.Context, targets []Target) []*model.CgroupFigures {
	out := make([]*model.CgroupFigures, len(targets))
	for i, e := range s.read(ctx, targets, figures) {
		e.mu.Lock()
		if e.reading != nil {
			out[i] = e.figures
		}
		e.mu.Unlock()
	}
	return out
}

// The files that are read of each controller, by what is in them: one number, or lines of a key and a number. What a
// kernel does not have is left out. Lines of disks, huge pages and pressure are read apart.
var (
	numbersV1 = map[string][]string{
		"cpuacct": {"cpuacct.usage", "cpuacct.usage_user", "cpuacct.usage_sys"},
		"pids":    {"pids.current", "pids.max"},
		"memory": {
			"memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "memory.limit_in_bytes",
			"memory.memsw.usage_in_bytes", "memory.memsw.max_usage_in_bytes", "memory.memsw.failcnt",
			"memory.memsw.limit_in_bytes",
			"memory.kmem.usage_in_bytes", "memory.kmem.max_usage_in_bytes", "memory.kmem.failcnt", "memory.kmem.limit_in_bytes",
			"memory.kmem.tcp.usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes", "memory.kmem.tcp.failcnt",
			"memory.kmem.tcp.limit_in_bytes",
		},
	}
	keysV1    = map[string][]string{"cpu": {"cpu.stat"}, "memory": {"memory.stat", "memory.oom_control"}}
	numbersV2 = []string{
		"pids.current", "pids.max", "memory.current", "memory.max", "memory.peak", "memory.swap.current",
		"memory.swap.max", "memory.swap.peak",
	}
	keysV2 = []string{"cpu.stat", "memory.stat", "memory.events"}
	// The throttle files count all of a disk's operations, whichever scheduler it has.
	disksV1 = []string{"blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"}
	pagesV1 = []string{"usage_in_bytes", "max_usage_in_bytes", "failcnt"}
)

func readFigures(h *cgroup.Hierarchies, path string) *model.CgroupFigures {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	out := &model.CgroupFigures{At: time.Now(), Unified: h.Version == cgroup.V2, Numbers: make(map[string]uint64, 100)}
	in := func(controller string, read func(directory)) {
		d, err := openDirectory(h.Dir(controller, path), *buf)
		if err != nil {
			return
		}
		defer d.close()
		read(d)
	}
	if out.Unified {
		in("", func(d directory) {
			d.numbers(numbersV2, out.Numbers)
			d.keys(keysV2, out.Numbers)
			out.Disks = d.unifiedDisks("io.stat")
			out.CPUPressure, out.MemoryPressure = d.pressure("cpu.pressure"), d.pressure("memory.pressure")
			out.IOPressure = d.pressure("io.pressure")
			out.PageSizes = pageSizes(h.Dir("", path), ".current")
			for _, size := range out.PageSizes {
				d.numbers([]string{"hugetlb." + size + ".current", "hugetlb." + size + ".max"}, out.Numbers)
				d.keys([]string{"hugetlb." + size + ".events"}, out.Numbers)
			}
		})
		return out
	}
	for controller, names := range numbersV1 {
		in(controller, func(d directory) { d.numbers(names, out.Numbers) })
	}
	for controller, names := range keysV1 {
		in(controller, func(d directory) { d.keys(names, out.Numbers) })
	}
	in("cpuacct", func(d directory) {
		text := d.read("cpuacct.usage_percpu")
		for {
			ns, ok := parseUint(nextWord(&text))
			if !ok {
				break
			}
			out.PerCPU = append(out.PerCPU, ns)
		}
	})
	in("blkio", func(d directory) {
		for _, name := range disksV1 {
			out.Disks = append(out.Disks, d.blkioDisks(name)...)
		}
	})
	in("hugetlb", func(d directory) {
		out.PageSizes = pageSizes(h.Dir("hugetlb", path), ".usage_in_bytes")
		for _, size := range out.PageSizes {
			for _, name := range pagesV1 {
				d.numbers([]string{"hugetlb." + size + "." + name}, out.Numbers)
			}
		}
	})
	return out
}

func (d directory) numbers(names []string, to map[string]uint64) {
	for _, name := range names {
		word := firstWord(d.read(name))
		if v, ok := parseUint(word); ok {
			to[name] = v
		} else if string(word) == "max" {
			to[name] = math.MaxUint64
		}
	}
}

func (d directory) keys(names []string, to map[string]uint64) {
	for _, name := range names {
		pairs(d.read(name), func(key []byte, value uint64) { to[name+"/"+string(key)] = value })
	}
}

// unifiedDisks reads lines `8:0 rbytes=1 wbytes=2 …`.
func (d directory) unifiedDisks(name string) (out []model.DiskFigure) {
	text := d.read(name)
	for len(text) > 0 {
		line := nextLine(&text)
		disk, ok := diskFigure(name, nextWord(&line))
		for word := nextWord(&line); ok && len(word) > 0; word = nextWord(&line) {
			key, value, _ := strings.Cut(string(word), "=")
			if disk.Value, ok = parseUint([]byte(value)); ok {
				disk.Key = key
				out = append(out, disk)
			}
		}
	}
	return out
}

// blkioDisks reads lines `8:0 Read 1`. The line of the total over all disks has no disk.
func (d directory) blkioDisks(name string) (out []model.DiskFigure) {
	text := d.read(name)
	for len(text) > 0 {
		line := nextLine(&text)
		disk, ok := diskFigure(name, nextWord(&line))
		if !ok {
			continue
		}
		disk.Key = string(nextWord(&line))
		if disk.Value, ok = parseUint(nextWord(&line)); ok {
			out = append(out, disk)
		}
	}
	return out
}

func diskFigure(file string, number []byte) (model.DiskFigure, bool) {
	disk, ok := newDisk(number)
	if !ok {
		return model.DiskFigure{}, false
	}
	major, majorErr := strconv.ParseUint(disk.Major, 10, 32)
	minor, minorErr := strconv.ParseUint(disk.Minor, 10, 32)
	figure := model.DiskFigure{File: file, Major: major, Minor: minor, Device: disk.Device}
	return figure, majorErr == nil && minorErr == nil
}

// pageSizes are the sizes in the names of files `hugetlb.2MB.current`.
func pageSizes(dir, suffix string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "hugetlb.*"+suffix)) // the pattern is well formed
	sizes := map[string]bool{}
	for _, file := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "hugetlb."), suffix)
		if !strings.Contains(size, ".") { // hugetlb.2MB.rsvd.current: reservations
			sizes[size] = true
		}
	}
	return slices.Sorted(maps.Keys(sizes))
}
