package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
)

// UpdateSandboxResources changes the limits of a whole pod: its overhead and what its containers have together. What is nil
// or zero stays as it was. Limits that the kernel refuses change nothing.
//
// Who made the pod's cgroup keeps its limits. A kubelet makes it before the pod runs, and writes to it itself right after
// this call: Berth remembers and reports then, and writes where the cgroup is its own.
func (m *Manager) UpdateSandboxResources(ctx context.Context, id string, overhead, resources *model.Resources) error {
	s, err := m.index.sandbox(id)
	if err != nil {
		return err
	}
	release, err := s.hold(ctx, "update")
	if err != nil {
		return err
	}
	defer release()
	if m.index.gone(s) {
		return fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	old := s.Record()
	if old.Phase != record.SandboxReady {
		return fmt.Errorf("update pod sandbox %s: %w", record.ShortID(s.id), errSandboxNotReady)
	}
	next := old
	config := *old.Config // statuses share the old one
	if overhead != nil {
		config.Overhead = ocispec.MergeResources(config.Overhead, overhead)
	}
	if resources != nil {
		config.Resources = ocispec.MergeResources(config.Resources, resources)
	}
	next.Config = &config
	if err := m.cgroups.limitPod(&next); err != nil {
		if back := m.cgroups.limitPod(&old); back != nil {
			m.log.Error("limits of a pod after an update that failed", "pod", record.ShortID(s.id), "error", back)
		}
		return fmt.Errorf("update pod sandbox %s: %w", record.ShortID(s.id), err)
	}
	return s.Update(record.Save, func(r *record.Sandbox) { r.Config = &config })
}

// checkPodLimits refuses limits that only containers have.
func checkPodLimits(r *model.Resources) error {
	if r == nil {
		return nil
	}
	for name, set := range map[string]bool{
		"blkio": r.BlockIO != nil, "kernel_memory": r.KernelMemory != 0,
		"memory_swappiness": r.MemorySwappiness != nil, "pids_limit": r.PidsLimit != 0, "ulimits": len(r.Ulimits) > 0,
		"disk_quota": len(r.DiskQuota) > 0,
	} {
		if set {
			return fmt.Errorf("limits of the whole pod: %s: only a container can have it: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// maxShares is the kernel's largest weight.
const maxShares = 262144

// podResources are the limits of a whole pod: those of its containers together and, on top, its overhead. Nil: none.
func podResources(cfg *model.SandboxConfig) *model.Resources {
	if cfg.Resources == nil && cfg.Overhead == nil {
		return nil
	}
	var sum model.Resources
	if cfg.Resources != nil {
		sum = *cfg.Resources
	}
	if over := cfg.Overhead; over != nil {
		if sum.MemorySwap > 0 { // it includes memory
			sum.MemorySwap += over.MemoryLimit
		}
		sum.CPUShares = min(plus(sum.CPUShares, over.CPUShares), maxShares)
		sum.MemoryLimit = plus(sum.MemoryLimit, over.MemoryLimit)
		if sum.CPUQuota > 0 && over.CPUQuota > 0 {
			sum.CPUQuota += over.CPUQuota * cfsPeriod(sum.CPUPeriod) / cfsPeriod(over.CPUPeriod)
		}
	}
	return &sum
}

// plus adds an overhead to a limit. Overhead on top of no limit is no limit.
func plus(limit, overhead int64) int64 {
	if limit <= 0 || overhead <= 0 {
		return limit
	}
	return limit + overhead
}

// cfsPeriod is a period of CPU time in µs; 0 is the kernel's own.
func cfsPeriod(period int64) int64 {
	if period == 0 {
		return 100000
	}
	return period
}
