package v1

import (
	"maps"
	"math"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func toResources(c *check, p path, r *api.LinuxContainerResources) *model.Resources {
	if r == nil {
		return nil
	}
	c.Resources(p, r)
	c.Within(p.Field("memory_swap_limit_in_bytes"), r.MemorySwapLimitInBytes, -1, math.MaxInt64)
	if swap, limit := r.MemorySwapLimitInBytes, r.MemoryLimitInBytes; swap > 0 && limit > 0 && swap < limit {
		c.Fail(p.Field("memory_swap_limit_in_bytes"), "%d is memory and swap together, which cannot be less than "+
			"memory_limit_in_bytes, %d", swap, limit)
	}
	for field, list := range map[string]string{"cpuset_cpus": r.CpusetCpus, "cpuset_mems": r.CpusetMems} {
		if list != "" && !cpuList.MatchString(list) {
			c.Fail(p.Field(field), "%q is not a list such as 0-3,7", list)
		}
	}
	out := &model.Resources{
		CPUPeriod:   r.CpuPeriod,
		CPUQuota:    r.CpuQuota,
		CPUShares:   r.CpuShares,
		MemoryLimit: r.MemoryLimitInBytes,
		MemorySwap:  r.MemorySwapLimitInBytes,
		OOMScoreAdj: r.OomScoreAdj,
		CPUSetCPUs:  r.CpusetCpus,
		CPUSetMems:  r.CpusetMems,
		Unified:     maps.Clone(r.Unified),
	}
	seen := map[string]bool{}
	for i, h := range r.HugepageLimits {
		at := p.Field("hugepage_limits").At(i)
		size := h.GetPageSize()
		if !hugepageSize.MatchString(size) {
			c.Fail(at.Field("page_size"), "%q is not a size such as 2MB", size)
		} else if seen[size] {
			c.Fail(at.Field("page_size"), "%s has a limit already", size)
		}
		seen[size] = true
		out.HugepageLimit = append(out.HugepageLimit, model.HugepageLimit{PageSize: size, Limit: h.GetLimit()})
	}
	for file := range r.Unified {
		if !unifiedName.MatchString(file) {
			c.Fail(p.Field("unified").Key(file), "is not the name of a cgroup v2 file such as memory.high")
		}
	}
	c.dialect.ReadResources(c.Check, p, r, out)
	return out
}

func fromResources(r *model.Resources) *api.LinuxContainerResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxContainerResources{
		CpuPeriod:              r.CPUPeriod,
		CpuQuota:               r.CPUQuota,
		CpuShares:              r.CPUShares,
		MemoryLimitInBytes:     r.MemoryLimit,
		MemorySwapLimitInBytes: r.MemorySwap,
		OomScoreAdj:            r.OOMScoreAdj,
		CpusetCpus:             r.CPUSetCPUs,
		CpusetMems:             r.CPUSetMems,
		Unified:                r.Unified,
	}
	for _, h := range r.HugepageLimit {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: h.PageSize, Limit: h.Limit})
	}
	return out
}
