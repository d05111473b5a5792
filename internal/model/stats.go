package model

import "time"

// ContainerUsage is a reading of one container. A nil part could not be read (the container does not run).
type ContainerUsage struct {
	Container     *ContainerStatus
	At            time.Time
	CPU           *CPUUsage
	Memory        *MemoryUsage
	Swap          *SwapUsage
	IO            *IOUsage
	Processes     *uint64
	WritableLayer *FilesystemUsage
}

// SandboxUsage is a reading of a pod: its cgroup, its network and its containers.
type SandboxUsage struct {
	Sandbox    *SandboxStatus
	At         time.Time
	CPU        *CPUUsage
	Memory     *MemoryUsage
	IO         *IOUsage
	Processes  *uint64
	Network    []InterfaceUsage // the default interface first
	Containers []*ContainerUsage
}

// PSI is pressure stall information of one kind (Linux 4.20, cgroup v2).
type PSI struct {
	Full, Some PSIData
}

// PSIData is one line of a pressure file: averages in percent and a total in ns.
type PSIData struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// CPUUsage is cumulative since the cgroup was made.
type CPUUsage struct {
	UsageNanoSeconds uint64  // sum over all cores
	UsageNanoCores   *uint64 // rate over the time since the last reading; nil: there was none, or not long enough ago
	PSI              *PSI
}

// MemoryUsage is in bytes and counts, as the kubelet defines them.
type MemoryUsage struct {
	WorkingSet, Usage, RSS, Available, PageFaults, MajorPageFaults uint64
	PSI                                                            *PSI
}

// SwapUsage is in bytes.
type SwapUsage struct {
	Available, Usage uint64
}

// IOUsage is block I/O.
type IOUsage struct {
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
	PSI                                      *PSI
}

// FilesystemUsage is what a writable layer or the image store takes on the file system at Mountpoint.
type FilesystemUsage struct {
	At                    time.Time
	Mountpoint            string
	UsedBytes, InodesUsed uint64
}

// InterfaceUsage is a network interface's counters.
type InterfaceUsage struct {
	Name                                       string
	RxBytes, RxErrors, TxBytes, TxErrors       uint64
	RxPackets, RxDropped, TxPackets, TxDropped uint64
}
