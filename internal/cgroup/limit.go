package cgroup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Limit sets limits of a cgroup that exists: CPU, CPU sets, memory, huge pages and the unified files of v2.
// What is unset stays as it is. Where the kernel refuses one, those before it hold; device rules are not touched.
func (h *Hierarchies) Limit(cgroup string, r *specs.LinuxResources) error {
	limits := h.limits(r)
	config := &cgroups.Cgroup{Path: cgroup, Resources: limits}
	var manager interface {
		Set(*cgroups.Resources) error
	}
	var err error
	if h.Version == V2 {
		manager, err = fs2.NewManager(config, h.Dir("", cgroup))
	} else {
		paths := map[string]string{}
		for controller := range h.controllers {
			paths[controller] = h.Dir(controller, cgroup)
		}
		manager, err = fs.NewManager(config, paths)
	}
	if err == nil {
		err = manager.Set(limits)
	}
	if err != nil {
		return fmt.Errorf("limits of cgroup %s: %w", cgroup, Refused(err))
	}
	return nil
}

// limits are the same in the library's words.
func (h *Hierarchies) limits(r *specs.LinuxResources) *cgroups.Resources {
	limits := &cgroups.Resources{SkipDevices: true}
	if c := r.CPU; c != nil {
		limits.CpusetCpus, limits.CpusetMems = c.Cpus, c.Mems
		limits.CpuPeriod = value(c.Period)
		limits.CpuQuota = value(c.Quota)
		if h.Version == V2 {
			limits.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(value(c.Shares))
		} else {
			limits.CpuShares = value(c.Shares)
		}
	}
	if m := r.Memory; m != nil {
		limits.Memory, limits.MemorySwap, limits.MemoryReservation = value(m.Limit), value(m.Swap), value(m.Reservation)
	}
	for _, huge := range r.HugepageLimits {
		limits.HugetlbLimit = append(limits.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: huge.Pagesize, Limit: huge.Limit})
	}
	if h.Version == V2 {
		limits.Unified = r.Unified
	}
	return limits
}

// Refused gives an error of setting a limit the class of what is wrong: the value (ErrInvalidArgument), or the node
// (ErrFailedPrecondition): what runs in the cgroup now has more already, or a device is one that the kernel cannot
// limit so.
func Refused(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EOVERFLOW):
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV),
		// The library says it in words in place of EBUSY.
		strings.Contains(err.Error(), "unable to set memory limit"):
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
