package stats

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"berth/internal/cgroup"
	"berth/internal/cgroup/nested"
	"berth/internal/model"
)

// Detail is all that a node exports of one cgroup, beyond what Cgroup has. A nil figure could not be read,
// or the kernel does not have it on this cgroup version.
type Detail struct {
	Cgroup
	User, System *uint64 // CPU time in ns
	Throttling   *Throttling
	Cache        *uint64 // memory, in bytes, as all below
	MappedFile   *uint64
	ActiveFile   *uint64
	InactiveFile *uint64
	Kernel       *uint64
	MaxUsage     *uint64
	// OwnFaults and OwnMajorFaults are without those of the cgroups below, where the kernel tells them apart (v1).
	OwnFaults, OwnMajorFaults *uint64
	FailCount                 *uint64 // how often the limit was hit
	OOMKills                  *uint64
	SwapLimit                 *uint64 // of swap; on cgroup v1 of memory and swap together; 0: none
	Disks                     []Disk
	ThreadsMax                *uint64 // 0: no limit
	Count                     *uint64 // processes; Cgroup.Processes counts their threads too
	Descriptors               *uint64 // open files of all processes
	Sockets                   *uint64
	OpenFiles                 *uint64 // the soft limit of the init process; nil: none
}

// Throttling is what the limit of CPU time has done.
type Throttling struct {
	Periods, Throttled, ThrottledNanoSeconds, Bursts, BurstNanoSeconds uint64
}

// Disk is what a cgroup has read from and written to one block device.
type Disk struct {
	Device       string // /dev/sda; empty: the device is gone
	Major, Minor string
	model.IOUsage
}

// Reading is a target with all that is known of it.
type Reading struct {
	Detail  *Detail // nil: the cgroup has not answered, or is gone
	Layer   *model.FilesystemUsage
	Network []model.InterfaceUsage
}

// Details reads targets in full, in the order given, within the same bounds as Containers. Who has not answered in time
// has the last reading, with the time of that.
func (s *Sampler) Details(ctx context.Context, targets []Target) []Reading {
	entries := s.read(ctx, targets, details)
	out := make([]Reading, len(targets))
	for i, e := range entries {
		e.mu.Lock()
		out[i] = Reading{Layer: e.layer, Network: e.nets}
		if e.reading != nil {
			out[i].Detail = e.detail
		}
		e.mu.Unlock()
	}
	return out
}

// readDetails reads all that there is of a cgroup.
func readDetails(h *cgroup.Hierarchies, t Target) (*Detail, error) {
	v := newVisit(h, t.Cgroup)
	defer v.close()
	reading, err := read(h, t.Cgroup, all, v.directory)
	if err != nil {
		return nil, err
	}
	out := &Detail{Cgroup: *reading}
	in := func(controller string, read func(directory)) {
		if d, err := v.directory(controller); err == nil {
			read(d)
		}
	}
	if h.Version == cgroup.V2 {
		in("", out.readUnified)
	} else {
		in("cpuacct", func(d directory) {
			out.User, out.System = d.figure("cpuacct.usage_user"), d.figure("cpuacct.usage_sys")
		})
		in("cpu", func(d directory) { out.readThrottling(d, 1, "throttled_time", "burst_time") })
		in("memory", out.readMemory)
		in("blkio", out.readBlkio)
	}
	in("memory", func(d directory) { out.OOMKills = new(d.oomKills(h.Version)) })
	in("pids", func(d directory) {
		if max, limited := d.number("pids.max"); limited {
			out.ThreadsMax = &max
		} else {
			out.ThreadsMax = new(uint64)
		}
	})
	out.readProcesses(h.Dir("pids", t.Cgroup), t.PID)
	return out, nil
}

// figure is a file's number, or nil.
func (d directory) figure(name string) *uint64 {
	if v, ok := d.number(name); ok {
		return &v
	}
	return nil
}

// figures finds keys in a file of lines `key value`.
func (d directory) figures(name string, to map[string]**uint64) {
	pairs(d.read(name), func(key []byte, value uint64) {
		if field := to[string(key)]; field != nil {
			*field = &value
		}
	})
}

func (out *Detail) readThrottling(d directory, unit uint64, throttled, burst string) {
	text := d.read("cpu.stat")
	pairs(text, func(key []byte, value uint64) {
		if out.Throttling == nil {
			out.Throttling = &Throttling{}
		}
		switch string(key) {
		case "nr_periods":
			out.Throttling.Periods = value
		case "nr_throttled":
			out.Throttling.Throttled = value
		case throttled:
			out.Throttling.ThrottledNanoSeconds = value * unit
		case "nr_bursts":
			out.Throttling.Bursts = value
		case burst:
			out.Throttling.BurstNanoSeconds = value * unit
		}
	})
}

func (out *Detail) readUnified(d directory) {
	out.readThrottling(d, 1000, "throttled_usec", "burst_usec")
	d.figures("cpu.stat", map[string]**uint64{"user_usec": &out.User, "system_usec": &out.System})
	for _, v := range []*uint64{out.User, out.System} {
		if v != nil {
			*v *= 1000
		}
	}
	d.figures("memory.stat", map[string]**uint64{"file": &out.Cache, "file_mapped": &out.MappedFile,
		"active_file": &out.ActiveFile, "inactive_file": &out.InactiveFile, "kernel": &out.Kernel, // kernel: Linux 5.18
		"pgfault": &out.OwnFaults, "pgmajfault": &out.OwnMajorFaults})
	out.MaxUsage = d.figure("memory.peak") // Linux 5.19
	d.figures("memory.events", map[string]**uint64{"max": &out.FailCount})
	out.readSwapLimit(d, "memory.swap.max")
	text := d.read("io.stat")
	for len(text) > 0 {
		line := nextLine(&text)
		rest := line
		if disk, ok := newDisk(nextWord(&rest)); ok {
			disk.IOUsage = *unifiedIO(line)
			out.Disks = append(out.Disks, disk)
		}
	}
}

func (out *Detail) readMemory(d directory) {
	d.figures("memory.stat", map[string]**uint64{"total_cache": &out.Cache, "total_mapped_file": &out.MappedFile,
		"total_active_file": &out.ActiveFile, "total_inactive_file": &out.InactiveFile,
		"pgfault": &out.OwnFaults, "pgmajfault": &out.OwnMajorFaults})
	out.Kernel = d.figure("memory.kmem.usage_in_bytes")
	out.MaxUsage = d.figure("memory.max_usage_in_bytes")
	out.FailCount = d.figure("memory.failcnt")
	out.readSwapLimit(d, "memory.memsw.limit_in_bytes")
}

// mostSwap is more than any limit of swap. Cgroup v1 has the number of bytes in all pages for none.
const mostSwap = 1 << 62

// readSwapLimit reads a limit of swap. A kernel that does not account for swap has no file, and no limit.
func (out *Detail) readSwapLimit(d directory, name string) {
	if out.Memory == nil {
		return // the cgroup does not have the controller
	}
	limit, _ := d.number(name) // 0 for "max"
	if limit > mostSwap {
		limit = 0
	}
	out.SwapLimit = &limit
}

// readBlkio reads lines `8:0 Read 1` of two files.
func (out *Detail) readBlkio(d directory) {
	places := map[string]int{}
	each := func(name string, pick func(*Disk) (read, write *uint64)) {
		text := d.read(name)
		for len(text) > 0 {
			line := nextLine(&text)
			number := nextWord(&line)
			operation := nextWord(&line)
			value, ok := parseUint(nextWord(&line))
			if !ok {
				continue // the line of the total
			}
			i, known := places[string(number)]
			if !known {
				disk, ok := newDisk(number)
				if !ok {
					continue
				}
				i = len(out.Disks)
				places[string(number)] = i
				out.Disks = append(out.Disks, disk)
			}
			read, write := pick(&out.Disks[i])
			switch string(operation) {
			case "Read":
				*read = value
			case "Write":
				*write = value
			}
		}
	}
	each("blkio.throttle.io_service_bytes_recursive", func(d *Disk) (*uint64, *uint64) {
		return &d.ReadBytes, &d.WriteBytes
	})
	each("blkio.throttle.io_serviced_recursive", func(d *Disk) (*uint64, *uint64) { return &d.ReadOps, &d.WriteOps })
}

// newDisk is a disk by its number, `8:0`.
func newDisk(number []byte) (Disk, bool) {
	major, minor, ok := strings.Cut(string(number), ":")
	if !ok {
		return Disk{}, false
	}
	return Disk{Device: DeviceName(major, minor), Major: major, Minor: minor}, true
}

// DeviceName is the /dev name of a block device; empty: there is none.
func DeviceName(major, minor string) string {
	link, err := os.Readlink("/sys/dev/block/" + major + ":" + minor)
	if err != nil {
		return ""
	}
	return "/dev/" + path.Base(link)
}

// readProcesses counts the processes below a cgroup directory and, of a container, what they have open.
// A process that ends meanwhile counts for as much as was seen of it.
func (out *Detail) readProcesses(dir string, first int) {
	if dir == "" {
		return
	}
	pids, err := nested.Processes(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	count := uint64(len(pids))
	out.Count = &count
	if first > 0 {
		out.Descriptors, out.Sockets = openFiles(pids)
		out.OpenFiles = openFilesLimit(first)
	}
}

// mostLooked is how many open files of a container are looked at, at the most: about a third of a second. A container
// opens millions, which share one file and take a few bytes each.
var mostLooked = 256 << 10

// openFiles counts what processes have open. It is nil where there is too much to look at.
func openFiles(pids []int) (all, sockets *uint64) {
	all, sockets = new(uint64), new(uint64)
	left := mostLooked
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		told := uint64(0)
		if info, err := f.Stat(); err == nil {
			told = uint64(info.Size()) // since Linux 6.2; before it is 0
		}
		seen := uint64(0)
		for sockets != nil {
			names, err := f.Readdirnames(1024)
			if seen += uint64(len(names)); len(names) > left {
				sockets = nil
				break
			}
			left -= len(names)
			for _, name := range names {
				if target, err := os.Readlink(dir + "/" + name); err == nil && strings.HasPrefix(target, "socket:") {
					*sockets++
				}
			}
			if err != nil {
				break
			}
		}
		f.Close()
		switch {
		case all == nil:
		case told > 0:
			*all += told
		case sockets != nil:
			*all += seen
		default:
			all = nil
		}
	}
	return all, sockets
}

// openFilesLimit is the soft limit of a process; nil: it has none.
func openFilesLimit(pid int) *uint64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return nil
	}
	_, rest, found := strings.Cut(string(text), "Max open files")
	if !found {
		return nil
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return nil
	}
	if v, ok := parseUint([]byte(fields[0])); ok {
		return &v
	}
	return nil
}

// Stale is when a reading was taken, if that was before a call began; zero: it was taken live.
func Stale(at, began time.Time) time.Time {
	if at.Before(began) {
		return at
	}
	return time.Time{}
}
