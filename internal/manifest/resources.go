package manifest

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How a kubelet turns CPUs into numbers of the kernel (pkg/kubelet/cm of Kubernetes).
const (
	sharesPerCPU = 1024
	minShares    = 2
	cpuPeriod    = 100_000 // µs
	minCPUQuota  = 1_000   // µs; the kernel takes no less
)

// resources are a container's limits as a kubelet computes them.
func (p *Pod) resources(c *corev1.Container, host *Host) *cri.LinuxContainerResources {
	request, limit := c.Resources.Requests, c.Resources.Limits
	r := &cri.LinuxContainerResources{
		CpuShares:          shares(request.Cpu().MilliValue()),
		MemoryLimitInBytes: limit.Memory().Value(),
		OomScoreAdj:        p.oomScoreAdj(c, host.Memory),
	}
	if milli := limit.Cpu().MilliValue(); milli > 0 {
		r.CpuPeriod = cpuPeriod
		r.CpuQuota = max(milli*cpuPeriod/1000, minCPUQuota)
	}
	for name, quantity := range limit {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			r.HugepageLimits = append(r.HugepageLimits,
				&cri.HugepageLimit{PageSize: pageSize(size), Limit: uint64(quantity.Value())})
		}
	}
	sort.Slice(r.HugepageLimits, func(i, j int) bool {
		return r.HugepageLimits[i].PageSize < r.HugepageLimits[j].PageSize
	})
	return r
}

// MemoryOfVolumes is how much each volume in memory may hold, in bytes, as for a kubelet: the memory of the pod where
// all its containers have a limit, else that of the node.
func (p *Pod) MemoryOfVolumes(host *Host) int64 {
	var sidecars, most int64
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		limit := c.Resources.Limits.Memory().Value()
		if limit == 0 {
			return host.Memory
		}
		if p.Kind(c) == KindSidecar {
			sidecars += limit
			limit = 0
		}
		most = max(most, sidecars+limit)
	}
	together := sidecars
	for i := range p.Spec.Containers {
		limit := p.Spec.Containers[i].Resources.Limits.Memory().Value()
		if limit == 0 {
			return host.Memory
		}
		together += limit
	}
	return min(max(most, together), host.Memory)
}

func shares(milliCPU int64) int64 { return max(milliCPU*sharesPerCPU/1000, minShares) }

// pageSize turns 2Mi into 2MB, as cgroup files spell the same size.
func pageSize(size string) string {
	quantity, err := resource.ParseQuantity(size)
	if err != nil {
		return size
	}
	bytes := quantity.Value()
	for _, unit := range []struct {
		name string
		size int64
	}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}} {
		if bytes >= unit.size && bytes%unit.size == 0 {
			return fmt.Sprintf("%d%s", bytes/unit.size, unit.name)
		}
	}
	return size
}

// oomScoreAdj follows the quality of service: a pod that limits all that it requests goes last, one that says nothing
// goes first, and in between it depends on the share of the node's memory that the container requests.
func (p *Pod) oomScoreAdj(c *corev1.Container, nodeMemory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	isGuaranteed, isBestEffort := true, true
	for other := range containers(&p.Spec) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := other.Resources.Requests[name], other.Resources.Limits[name]
			if !request.IsZero() || !limit.IsZero() {
				isBestEffort = false
			}
			if limit.IsZero() || request.Cmp(limit) != 0 {
				isGuaranteed = false
			}
		}
	}
	switch {
	case isBestEffort:
		return bestEffort
	case isGuaranteed:
		return guaranteed
	case nodeMemory <= 0:
		return bestEffort - 1
	}
	score := bestEffort - bestEffort*c.Resources.Requests.Memory().Value()/nodeMemory
	return min(max(score, bestEffort+guaranteed), bestEffort-1)
}
