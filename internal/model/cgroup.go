package model

import "time"

// CgroupFigures are what the files of a cgroup say, under the kernel's own names, for APIs that pass them on.
type CgroupFigures struct {
	At      time.Time
	Unified bool // cgroup v2, whose files have other names
	// Numbers are by file, as in "pids.current", and in files of more than one by file and key, as in "memory.stat/rss".
	// math.MaxUint64 is "max".
	Numbers map[string]uint64
	PerCPU  []uint64 // cpuacct.usage_percpu, on v1 alone
	Disks   []DiskFigure
	// PageSizes are the huge pages that the cgroup counts, as in "2MB": the files are named after them.
	PageSizes []string

	CPUPressure, MemoryPressure, IOPressure *PSI // nil: the kernel has none
}

// DiskFigure is one number of one block device.
type DiskFigure struct {
	File         string // as in "io.stat"
	Major, Minor uint64
	Device       string // /dev/sda; empty: the device is gone
	Key          string // v1: "Read"; v2: "rbytes"
	Value        uint64
}
