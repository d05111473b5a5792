package request

import "math"

// MinCPUShares and MaxCPUShares bound the weights that cgroup v1 takes.
const MinCPUShares, MaxCPUShares = 2, 262144

// MinCPUQuota is the least CPU time in a period that the kernel takes, in µs.
const MinCPUQuota = 1000

// Resources checks the limits of a container that all versions of the interface have. 0 is unset in each of them.
func (c *Check) Resources(p Path, r interface {
	GetCpuPeriod() int64
	GetCpuQuota() int64
	GetCpuShares() int64
	GetMemoryLimitInBytes() int64
	GetOomScoreAdj() int64
}) {
	c.Within(p.Field("cpu_period"), r.GetCpuPeriod(), 1000, 1000000) // what the kernel takes, in µs
	if r.GetCpuQuota() != -1 {                                       // no limit
		c.Within(p.Field("cpu_quota"), r.GetCpuQuota(), MinCPUQuota, math.MaxInt64)
	}
	c.Within(p.Field("cpu_shares"), r.GetCpuShares(), MinCPUShares, MaxCPUShares)
	c.Within(p.Field("memory_limit_in_bytes"), r.GetMemoryLimitInBytes(), -1, math.MaxInt64)
	c.Within(p.Field("oom_score_adj"), r.GetOomScoreAdj(), -1000, 1000)
}
