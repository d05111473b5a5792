package plan

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// MergeResources returns a container's resources with the fields that are set in res replaced.
func MergeResources(have *cgroups.Resources, res *specs.LinuxResources) (*cgroups.Resources, error) {
	r := *have
	if res.CPU != nil {
		mergeCPU(&r, res.CPU)
	}
	if res.Memory != nil {
		mergeMemory(&r, res.Memory)
	}
	if p := res.Pids; p != nil && p.Limit != nil {
		r.PidsLimit = p.Limit
	}
	if res.BlockIO != nil {
		mergeBlockIO(&r, res.BlockIO)
	}
	for _, h := range res.HugepageLimits {
		limits := make([]*cgroups.HugepageLimit, 0, len(r.HugetlbLimit)+1)
		for _, l := range r.HugetlbLimit {
			if l.Pagesize != h.Pagesize {
				limits = append(limits, l)
			}
		}
		r.HugetlbLimit = append(limits, &cgroups.HugepageLimit{Pagesize: h.Pagesize, Limit: h.Limit})
	}
	if len(res.Unified) > 0 {
		unified := map[string]string{}
		for k, v := range r.Unified {
			unified[k] = v
		}
		for k, v := range res.Unified {
			if strings.ContainsAny(k, "/\x00") {
				return nil, fmt.Errorf("cgroup file %q: %w", k, errdefs.ErrInvalidArgument)
			}
			unified[k] = v
		}
		r.Unified = unified
	}
	if found := startRefused.find(res); found != "" {
		return nil, fmt.Errorf("resources with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	if len(res.Devices) > 0 || res.Network != nil || len(res.Rdma) > 0 {
		return nil, fmt.Errorf("devices, network and RDMA limits of a running container: %w", errdefs.ErrNotImplemented)
	}
	return &r, nil
}

// replaceDevice returns a copy of a list in which the entry of one device is replaced. The list itself belongs to the
// container and is not changed.
func replaceDevice[T any](list []*T, with *T, device func(*T) cgroups.BlockIODevice) []*T {
	out := make([]*T, 0, len(list)+1)
	for _, d := range list {
		if device(d) != device(with) {
			out = append(out, d)
		}
	}
	return append(out, with)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func mergeCPU(r *cgroups.Resources, c *specs.LinuxCPU) {
	set(&r.CpuShares, c.Shares)
	set(&r.CpuPeriod, c.Period)
	set(&r.CpuQuota, c.Quota)
	set(&r.CpuRtPeriod, c.RealtimePeriod)
	set(&r.CpuRtRuntime, c.RealtimeRuntime)
	if c.Burst != nil {
		r.CpuBurst = c.Burst
	}
	if c.Idle != nil {
		r.CPUIdle = c.Idle
	}
	if c.Cpus != "" {
		r.CpusetCpus = c.Cpus
	}
	if c.Mems != "" {
		r.CpusetMems = c.Mems
	}
	// On v2 the weight is what counts, and it was made of the shares when the container was created.
	if c.Shares != nil {
		r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
	}
}

func mergeMemory(r *cgroups.Resources, m *specs.LinuxMemory) {
	set(&r.Memory, m.Limit)
	set(&r.MemorySwap, m.Swap)
	set(&r.MemoryReservation, m.Reservation)
	if m.Swappiness != nil {
		r.MemorySwappiness = m.Swappiness
	}
	if m.DisableOOMKiller != nil {
		r.OomKillDisable = *m.DisableOOMKiller
	}
	if m.CheckBeforeUpdate != nil {
		r.MemoryCheckBeforeUpdate = *m.CheckBeforeUpdate
	}
}

func mergeBlockIO(r *cgroups.Resources, b *specs.LinuxBlockIO) {
	if b.Weight != nil {
		r.BlkioWeight = *b.Weight
	}
	if b.LeafWeight != nil {
		r.BlkioLeafWeight = *b.LeafWeight
	}
	for _, d := range b.WeightDevice {
		var w, lw uint16
		set(&w, d.Weight)
		set(&lw, d.LeafWeight)
		r.BlkioWeightDevice = replaceDevice(r.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, w, lw),
			func(w *cgroups.WeightDevice) cgroups.BlockIODevice { return w.BlockIODevice })
	}
	for _, t := range []struct {
		to   *[]*cgroups.ThrottleDevice
		from []specs.LinuxThrottleDevice
	}{
		{&r.BlkioThrottleReadBpsDevice, b.ThrottleReadBpsDevice},
		{&r.BlkioThrottleWriteBpsDevice, b.ThrottleWriteBpsDevice},
		{&r.BlkioThrottleReadIOPSDevice, b.ThrottleReadIOPSDevice},
		{&r.BlkioThrottleWriteIOPSDevice, b.ThrottleWriteIOPSDevice},
	} {
		for _, d := range t.from {
			*t.to = replaceDevice(*t.to, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate),
				func(t *cgroups.ThrottleDevice) cgroups.BlockIODevice { return t.BlockIODevice })
		}
	}
}
