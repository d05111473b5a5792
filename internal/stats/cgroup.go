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

// Read reads a cgroup by its path below the hierarchies' roots. It is an error (ErrNotExist) only if the cgroup
// is in no hierarchy. A controller's lock can make it wait; a Sampler does not.
func Read(h *cgroup.Hierarchies, path string) (*Cgroup, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	if h.Version == cgroup.V2 {
		return readUnified(h.Dir("", path), *buf)
	}
	return readV1(h, path, *buf)
}

func readUnified(path string, buf []byte) (*Cgroup, error) {
	d, err := openDirectory(path, buf)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	defer d.close()
	out := &Cgroup{At: time.Now()}
	if text := d.read("cpu.stat"); text != nil {
		out.CPU = &model.CPUUsage{}
		pairs(text, func(key []byte, value uint64) {
			if string(key) == "usage_usec" {
				out.CPU.UsageNanoSeconds = value * 1000
			}
		})
		out.CPU.PSI = d.pressure("cpu.pressure")
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
		out.Memory = memory(usage, file, anon, faults, major, limit, limited)
		out.Memory.PSI = d.pressure("memory.pressure")
		if used, ok := d.number("memory.swap.current"); ok {
			out.Swap = &model.SwapUsage{Usage: used}
			if limit, ok := d.number("memory.swap.max"); ok {
				out.Swap.Available = remaining(limit, used)
			}
		}
	}
	if text := d.read("io.stat"); text != nil {
		out.IO = unifiedIO(text)
		out.IO.PSI = d.pressure("io.pressure")
	}
	if n, ok := d.number("pids.current"); ok {
		out.Processes = &n
	}
	return out, nil
}

// noLimit: v1 says about 2^63 bytes where there is no limit; what is above no machine has.
const noLimit = math.MaxInt64 / 2

func readV1(h *cgroup.Hierarchies, path string, buf []byte) (*Cgroup, error) {
	out := &Cgroup{At: time.Now()}
	found := false
	in := func(controller string, read func(directory)) error {
		d, err := openDirectory(h.Dir(controller, path), buf)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		defer d.close()
		found = true
		read(d)
		return nil
	}
	err := errors.Join(
		in("cpuacct", func(d directory) {
			if ns, ok := d.number("cpuacct.usage"); ok {
				out.CPU = &model.CPUUsage{UsageNanoSeconds: ns}
			}
		}),
		in("memory", func(d directory) {
			usage, ok := d.number("memory.usage_in_bytes")
			if !ok {
				return
			}
			var file, rss, faults, major, limit, swap uint64
			var swaps bool
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
					swap, swaps = value, true
				case "hierarchical_memory_limit":
					limit = value
				}
			})
			out.Memory = memory(usage, file, rss, faults, major, limit, limit > 0 && limit < noLimit)
			if swaps {
				out.Swap = &model.SwapUsage{Usage: swap}
				if limit < noLimit {
					if both, ok := d.number("memory.memsw.limit_in_bytes"); ok && both < noLimit {
						out.Swap.Available = remaining(remaining(both, limit), swap)
					}
				}
			}
		}),
		in("blkio", func(d directory) {
			out.IO = &model.IOUsage{}
			// The throttle files count all I/O; the others only what a scheduler that is gone has seen.
			out.IO.ReadBytes, out.IO.WriteBytes = d.blkio("blkio.throttle.io_service_bytes_recursive")
			out.IO.ReadOps, out.IO.WriteOps = d.blkio("blkio.throttle.io_serviced_recursive")
		}),
		in("pids", func(d directory) {
			if n, ok := d.number("pids.current"); ok {
				out.Processes = &n
			}
		}),
	)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("cgroup %s: %w", path, fs.ErrNotExist)
	}
	return out, nil
}

// memory is in the kubelet's terms: the working set is what cannot be dropped at once, and what is available
// is what the limit leaves above it (0 without a limit).
func memory(usage, inactiveFile, rss, faults, major, limit uint64, limited bool) *model.MemoryUsage {
	m := &model.MemoryUsage{Usage: usage, WorkingSet: remaining(usage, inactiveFile), RSS: rss, PageFaults: faults,
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

// OOMKills is how many processes of a cgroup, and of those below it where the kernel says so, the OOM killer has ended.
func OOMKills(h *cgroup.Hierarchies, path string) (uint64, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	name := "memory.oom_control" // oom_kill: Linux 4.13
	if h.Version == cgroup.V2 {
		name = "memory.events"
	}
	d, err := openDirectory(h.Dir("memory", path), *buf)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %w", err)
	}
	defer d.close()
	var kills uint64
	pairs(d.read(name), func(key []byte, value uint64) {
		if string(key) == "oom_kill" {
			kills = value
		}
	})
	return kills, nil
}
