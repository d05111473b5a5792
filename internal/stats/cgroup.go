package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"
	"time"

	"berth/internal/cgroup"
	"berth/internal/model"
)

// Cgroup is a reading of one cgroup. A nil part could not be read: its controller or the cgroup is not there.
type Cgroup struct {
	At        time.Time
	CPU       *model.CPUUsage // without UsageNanoCores, which needs two readings
	Memory    *model.MemoryUsage
	Swap      *model.SwapUsage
	IO        *model.IOUsage
	Processes *uint64
}

// bufferSize takes the largest file of interest (memory.stat, about 2 KB) with room to grow. io.stat of a node with
// hundreds of disks is cut.
const bufferSize = 16 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// parts are what a reading has beside CPU time and memory. What it need not have takes no time.
type parts uint8

const (
	swap parts = 1 << iota
	// blockIO is how much was read and written. Its pressure, and whether there is block I/O at all, are always read.
	blockIO
	processes

	all = swap | blockIO | processes
)

// reading is a Cgroup and what it points to, in one block of memory.
type reading struct {
	Cgroup
	cpu       model.CPUUsage
	memory    model.MemoryUsage
	swap      model.SwapUsage
	io        model.IOUsage
	processes uint64
}

// Read reads a cgroup by its path below the hierarchies' roots. It is an error (ErrNotExist) only if the cgroup
// is in no hierarchy. A controller's lock can make it wait; a Sampler does not.
func Read(h *cgroup.Hierarchies, path string) (*Cgroup, error) { return readParts(h, path, all) }

// readParts is Read of some parts.
func readParts(h *cgroup.Hierarchies, path string, wanted parts) (*Cgroup, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	return read(h, path, wanted, func(controller string) (directory, error) {
		return openDirectory(h.Dir(controller, path), *buf)
	})
}

// readKept reads a cgroup through files that are kept open, and keeps them.
func readKept(k *kept, wanted parts) (*Cgroup, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for range 2 {
		out, err := read(k.hierarchies, k.path, wanted, func(controller string) (directory, error) {
			return directory{fd: -1, buf: *buf, kept: k, controller: controller}, nil
		})
		if err != nil {
			return nil, err
		}
		if !k.gone && k.found() {
			return out, nil
		}
		k.close() // the path may lead to another cgroup now
	}
	return nil, fmt.Errorf("cgroup %s: %w", k.path, fs.ErrNotExist)
}

// read reads the directories that open gives for the controllers.
func read(h *cgroup.Hierarchies, path string, wanted parts, open func(controller string) (directory, error)) (
	*Cgroup, error) {
	if h.Version == cgroup.V1 {
		return readV1(path, wanted, open)
	}
	d, err := open("")
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	defer d.close()
	out := &reading{Cgroup: Cgroup{At: time.Now()}}
	out.unified(d, wanted)
	return &out.Cgroup, nil
}

func (r *reading) unified(d directory, wanted parts) {
	if text := d.read("cpu.stat"); text != nil {
		r.CPU = &r.cpu
		pairs(text, func(key []byte, value uint64) {
			if string(key) == "usage_usec" {
				r.cpu.UsageNanoSeconds = value * 1000
			}
		})
		r.cpu.PSI = d.pressure("cpu.pressure")
	}
	if usage, ok := d.number("memory.current"); ok {
		var file, anon, faults, major uint64
		pairs(d.read("memory.stat"), func(key []byte, value uint64) {
			switch string(key) {
			case "inactive_file":
				file = value
			case "anon":
				anon = value
			case "pgfault":
				faults = value
			case "pgmajfault":
				major = value
			}
		})
		limit, limited := d.number("memory.max")
		r.memory = memory(usage, file, anon, faults, major, limit, limited)
		r.Memory = &r.memory
		r.memory.PSI = d.pressure("memory.pressure")
		if wanted&swap != 0 {
			r.unifiedSwap(d)
		}
	}
	switch {
	case wanted&blockIO != 0:
		if text := d.read("io.stat"); text != nil {
			r.io, r.IO = *unifiedIO(text), &r.io
		}
	case d.has("io.stat"):
		r.IO = &r.io
	}
	if r.IO != nil {
		r.io.PSI = d.pressure("io.pressure")
	}
	if wanted&processes != 0 {
		r.countProcesses(d)
	}
}

func (r *reading) unifiedSwap(d directory) {
	used, ok := d.number("memory.swap.current")
	if !ok {
		return
	}
	r.swap.Usage, r.Swap = used, &r.swap
	if limit, ok := d.number("memory.swap.max"); ok {
		r.swap.Available = remaining(limit, used)
	}
}

func (r *reading) countProcesses(d directory) {
	if n, ok := d.number("pids.current"); ok {
		r.processes, r.Processes = n, &r.processes
	}
}

// noLimit: v1 says about 2^63 bytes where there is no limit; what is above no machine has.
const noLimit = math.MaxInt64 / 2

// controllersV1 are those that a reading is of, each with what reads it.
var controllersV1 = []struct {
	name   string
	wanted parts // 0: it is part of each reading
	read   func(*reading, directory, parts)
}{
	{"cpuacct", 0, func(r *reading, d directory, _ parts) {
		if ns, ok := d.number("cpuacct.usage"); ok {
			r.cpu.UsageNanoSeconds, r.CPU = ns, &r.cpu
		}
	}},
	{"memory", 0, (*reading).memoryV1},
	{"blkio", 0, func(r *reading, d directory, wanted parts) {
		if wanted&blockIO != 0 {
			// The throttle files count all I/O; the others only what a scheduler that is gone has seen.
			r.io.ReadBytes, r.io.WriteBytes = d.blkio("blkio.throttle.io_service_bytes_recursive")
			r.io.ReadOps, r.io.WriteOps = d.blkio("blkio.throttle.io_serviced_recursive")
		}
		if d.has("cgroup.procs") {
			r.IO = &r.io
		}
	}},
	{"pids", processes, func(r *reading, d directory, _ parts) { r.countProcesses(d) }},
}

func readV1(path string, wanted parts, open func(controller string) (directory, error)) (*Cgroup, error) {
	out := &reading{Cgroup: Cgroup{At: time.Now()}}
	var errs []error
	found := false
	for _, c := range controllersV1 {
		if c.wanted&^wanted != 0 {
			continue
		}
		d, err := open(c.name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, fmt.Errorf("cgroup: %w", err))
		default:
			found = true
			c.read(out, d, wanted)
			d.close()
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("cgroup %s: %w", path, fs.ErrNotExist)
	}
	return &out.Cgroup, nil
}

func (r *reading) memoryV1(d directory, wanted parts) {
	usage, ok := d.number("memory.usage_in_bytes")
	if !ok {
		return
	}
	var file, rss, faults, major, limit uint64
	swaps, both := false, uint64(math.MaxUint64)
	pairs(d.read("memory.stat"), func(key []byte, value uint64) {
		switch string(key) {
		case "total_inactive_file":
			file = value
		case "total_rss":
			rss = value
		case "total_pgfault":
			faults = value
		case "total_pgmajfault":
			major = value
		case "total_swap":
			r.swap.Usage, swaps = value, true
		case "hierarchical_memory_limit":
			limit = value
		case "hierarchical_memsw_limit":
			both = value
		}
	})
	r.memory = memory(usage, file, rss, faults, major, limit, limit > 0 && limit < noLimit)
	r.Memory = &r.memory
	if !swaps || wanted&swap == 0 {
		return
	}
	r.Swap = &r.swap
	if limit < noLimit && both < noLimit {
		r.swap.Available = remaining(remaining(both, limit), r.swap.Usage)
	}
}

// memory is in the kubelet's terms: the working set is what cannot be dropped at once, and what is available
// is what the limit leaves above it (0 without a limit).
func memory(usage, inactiveFile, rss, faults, major, limit uint64, limited bool) model.MemoryUsage {
	m := model.MemoryUsage{Usage: usage, WorkingSet: remaining(usage, inactiveFile), RSS: rss, PageFaults: faults,
		MajorPageFaults: major}
	if limited {
		m.Available = remaining(limit, m.WorkingSet)
	}
	return m
}

func remaining(whole, part uint64) uint64 {
	if part > whole {
		return 0
	}
	return whole - part
}

// unifiedIO sums lines `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …` over the disks.
func unifiedIO(text []byte) *model.IOUsage {
	out := &model.IOUsage{}
	for len(text) > 0 {
		line := nextLine(&text)
		nextWord(&line)
		for len(line) > 0 {
			word := nextWord(&line)
			for i, c := range word {
				if c != '=' {
					continue
				}
				v, _ := parseUint(word[i+1:])
				switch string(word[:i]) {
				case "rbytes":
					out.ReadBytes += v
				case "wbytes":
					out.WriteBytes += v
				case "rios":
					out.ReadOps += v
				case "wios":
					out.WriteOps += v
				}
				break
			}
			if len(word) == 0 {
				break
			}
		}
	}
	return out
}

// blkio sums lines `8:0 Read 1` and `8:0 Write 2` over the disks.
func (d directory) blkio(name string) (read, write uint64) {
	text := d.read(name)
	for len(text) > 0 {
		line := nextLine(&text)
		nextWord(&line)
		op := nextWord(&line)
		v, ok := parseUint(nextWord(&line))
		if !ok {
			continue
		}
		switch string(op) {
		case "Read":
			read += v
		case "Write":
			write += v
		}
	}
	return read, write
}

// pressure reads lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, total in µs. nil: the kernel has none.
func (d directory) pressure(name string) *model.PSI {
	text := d.read(name)
	if len(text) == 0 {
		return nil
	}
	out := &model.PSI{}
	for len(text) > 0 {
		line := nextLine(&text)
		var to *model.PSIData
		switch string(nextWord(&line)) {
		case "some":
			to = &out.Some
		case "full":
			to = &out.Full
		default:
			continue
		}
		for {
			word := nextWord(&line)
			if len(word) == 0 {
				break
			}
			switch {
			case len(word) > 6 && string(word[:6]) == "avg10=":
				to.Avg10 = parseFloat(word[6:])
			case len(word) > 6 && string(word[:6]) == "avg60=":
				to.Avg60 = parseFloat(word[6:])
			case len(word) > 7 && string(word[:7]) == "avg300=":
				to.Avg300 = parseFloat(word[7:])
			case len(word) > 6 && string(word[:6]) == "total=":
				if v, ok := parseUint(word[6:]); ok {
					to.Total = v * 1000
				}
			}
		}
	}
	return out
}

// oomKills is how many processes of a cgroup, and of those below it where the kernel says so, the OOM killer has ended.
func (d directory) oomKills(version cgroup.Version) (kills uint64) {
	name := "memory.oom_control" // oom_kill: Linux 4.13
	if version == cgroup.V2 {
		name = "memory.events"
	}
	pairs(d.read(name), func(key []byte, value uint64) {
		if string(key) == "oom_kill" {
			kills = value
		}
	})
	return kills
}
