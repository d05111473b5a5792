package ocispec

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
)

// The kernel's values of what nobody has set.
const (
	noLimit       int64  = -1
	defaultPeriod uint64 = 100_000 // µs
	defaultShares uint64 = 1024

	// nothingReserved is what ends a reservation on cgroup v2, where -1 would have all memory protected and 0 is not
	// written. The kernel counts whole pages, of which 1 byte is none.
	nothingReserved int64 = 1
)

// UndoResources returns the limits that undo an update of a cgroup: those from before it, and no limit where there was
// none. To leave such a field out would leave the update's limit in force. Processors and memory nodes, limits of huge
// pages, weights of block I/O and files of cgroup v2 that had no value before have none that could be given: what
// cgroup.Save has read of them is restored after this.
func UndoResources(before, update *specs.LinuxResources, h *Host) *specs.LinuxResources {
	out := *before
	if cpu := update.CPU; cpu != nil {
		out.CPU = copied(before.CPU)
		unset(&out.CPU.Quota, cpu.Quota, noLimit)
		unset(&out.CPU.Period, cpu.Period, defaultPeriod)
		unset(&out.CPU.Shares, cpu.Shares, defaultShares)
	}
	if memory := update.Memory; memory != nil {
		out.Memory = copied(before.Memory)
		unset(&out.Memory.Limit, memory.Limit, noLimit)
		unset(&out.Memory.Swap, memory.Swap, noLimit)
		reserved := noLimit
		if h.Cgroups.Version == cgroup.V2 {
			reserved = nothingReserved
		}
		unset(&out.Memory.Reservation, memory.Reservation, reserved)
	}
	if pids := update.Pids; pids != nil {
		out.Pids = copied(before.Pids)
		unset(&out.Pids.Limit, pids.Limit, noLimit)
	}
	if io := update.BlockIO; io != nil {
		out.BlockIO = copied(before.BlockIO)
		noRate := unthrottled(h)
		unthrottle(&out.BlockIO.ThrottleReadBpsDevice, io.ThrottleReadBpsDevice, noRate)
		unthrottle(&out.BlockIO.ThrottleWriteBpsDevice, io.ThrottleWriteBpsDevice, noRate)
		unthrottle(&out.BlockIO.ThrottleReadIOPSDevice, io.ThrottleReadIOPSDevice, noRate)
		unthrottle(&out.BlockIO.ThrottleWriteIOPSDevice, io.ThrottleWriteIOPSDevice, noRate)
	}
	out.Devices, out.Network, out.Rdma = nil, nil, nil // an update says nothing of these
	return &out
}

// copied is a copy of what p points to; the zero value for nil.
func copied[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	c := *p
	return &c
}

// unset sets a field to the value of no limit, if the update has one and there was none before.
func unset[T any](field **T, update *T, none T) {
	if *field == nil && update != nil {
		*field = &none
	}
}

// unthrottle ends the limits of devices that had none before: with the rate that means no limit.
func unthrottle(before *[]specs.LinuxThrottleDevice, update []specs.LinuxThrottleDevice, noRate uint64) {
	all := slices.Clone(*before)
	for _, device := range update {
		same := func(d specs.LinuxThrottleDevice) bool { return d.Major == device.Major && d.Minor == device.Minor }
		if !slices.ContainsFunc(*before, same) {
			device.Rate = noRate
			all = append(all, device)
		}
	}
	*before = all
}
