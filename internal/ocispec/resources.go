package ocispec

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/model"
)

func (b *builder) resources() error {
	linux, err := Resources(b.config.Resources, b.in.Handler.PidsLimit, b.host)
	if err != nil {
		return model.FieldContainerResources.Within(err)
	}
	b.spec.Linux.Resources = linux
	wanted := 0
	if b.config.Resources != nil {
		wanted = int(b.config.Resources.OOMScoreAdj)
	}
	// Without a value of its own a container would inherit the keeper's, which protects the keeper.
	score := max(wanted, b.host.MinOOMScoreAdj)
	if score != wanted {
		b.warn("oom_score_adj %d is below the %d that this node's runtime may give", wanted, score)
	}
	b.spec.Process.OOMScoreAdj = &score
	return nil
}

// Resources checks limits and turns them into those of a spec, for a new container and for an update alike. What is
// zero stays unset. pidsLimit is in processes; 0: none. Errors are those of CheckResources. Device rules are not among
// them.
func Resources(r *model.Resources, pidsLimit int64, h *Host) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{}
	if r != nil && r.PidsLimit != 0 {
		pidsLimit = r.PidsLimit
	}
	if pidsLimit != 0 && h.Cgroups.Has("pids") {
		out.Pids = &specs.LinuxPids{Limit: &pidsLimit}
	}
	if r == nil {
		return out, nil
	}
	if err := CheckResources(r, h); err != nil {
		return nil, err
	}
	cpu := &specs.LinuxCPU{Cpus: r.CPUSetCPUs, Mems: r.CPUSetMems}
	if r.CPUPeriod != 0 {
		period := uint64(r.CPUPeriod)
		cpu.Period = &period
	}
	if r.CPUQuota != 0 {
		quota := r.CPUQuota
		cpu.Quota = &quota
	}
	if r.CPUShares != 0 {
		shares := uint64(r.CPUShares)
		cpu.Shares = &shares
	}
	if *cpu != (specs.LinuxCPU{}) {
		out.CPU = cpu
	}
	if r.MemoryLimit != 0 {
		limit := r.MemoryLimit
		out.Memory = &specs.LinuxMemory{Limit: &limit}
		// A container with a limit does not swap beyond it unless it is told to.
		if swap := r.MemorySwap; h.SwapLimits {
			if swap == 0 {
				swap = limit
			}
			out.Memory.Swap = &swap
		}
	}
	if r.MemoryReservation != 0 || r.MemorySwappiness != nil {
		if out.Memory == nil {
			out.Memory = &specs.LinuxMemory{}
		}
		if reservation := r.MemoryReservation; reservation != 0 {
			if reservation < 0 && h.Cgroups.Version == cgroup.V2 {
				reservation = nothingReserved
			}
			out.Memory.Reservation = &reservation
		}
		if r.MemorySwappiness != nil {
			swappiness := uint64(*r.MemorySwappiness)
			out.Memory.Swappiness = &swappiness
		}
	}
	if r.BlockIO != nil {
		io, err := BlockIO(r.BlockIO, h)
		if err != nil {
			return nil, err
		}
		out.BlockIO = io
	}
	for _, huge := range r.HugepageLimit {
		if h.Cgroups.Has("hugetlb") {
			out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: huge.PageSize, Limit: huge.Limit})
		}
	}
	out.Unified = maps.Clone(r.Unified)
	return out, nil
}

// checkV1Memory is about limits that cgroup v2 does not have.
func checkV1Memory(r *model.Resources, h *Host) error {
	if s := r.MemorySwappiness; s != nil {
		switch {
		case *s < 0 || *s > model.MaxSwappiness:
			return model.LimitMemorySwappiness.Wrong(invalid("%d is not in 0 to %d", *s, model.MaxSwappiness))
		case h.Cgroups.Version == cgroup.V2:
			return model.LimitMemorySwappiness.Wrong(unable("this host uses cgroup v2, which has no swappiness of a cgroup"))
		case !h.Cgroups.Has("memory"):
			return model.LimitMemorySwappiness.Wrong(unable("this host has no memory controller"))
		}
	}
	switch {
	case r.KernelMemory <= 0: // no limit is what there is
	case h.Cgroups.Version == cgroup.V2:
		return model.LimitKernelMemory.Wrong(
			unable("this host uses cgroup v2, whose memory limit has the kernel's memory in it"))
	default:
		// Linux 5.16 refuses it; before, a limit could lead to failures that no program expects.
		return model.LimitKernelMemory.Wrong(
			unable("the limit was given up in Linux 5.16, and is not set on older kernels either"))
	}
	return nil
}

var (
	cpuList  = regexp.MustCompile(`^[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*$`)
	pageSize = regexp.MustCompile(`^[1-9][0-9]{0,4}[KMG]B$`)
	fileName = regexp.MustCompile(`^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
)

const (
	minPeriod, maxPeriod = 1000, 1_000_000 // µs; the kernel's bounds
	minQuota             = 1000            // µs
	maxCPUList           = 100 + 6*8192    // bytes that the kernel takes for a cpuset, built for its most processors
	minShares, maxShares = 2, 262144
)

// CheckResources says which limit is wrong (ErrInvalidArgument), or not to be had on this host (ErrFailedPrecondition).
// The error names the limit by its name in the model, of which the caller says what it is within.
func CheckResources(r *model.Resources, h *Host) error {
	switch {
	case r.CPUPeriod != 0 && (r.CPUPeriod < minPeriod || r.CPUPeriod > maxPeriod):
		return model.LimitCPUPeriod.Wrong(invalid("%d µs is not in %d to %d", r.CPUPeriod, minPeriod, maxPeriod))
	case r.CPUQuota != 0 && r.CPUQuota != -1 && r.CPUQuota < minQuota:
		return model.LimitCPUQuota.Wrong(invalid("%d µs is below %d, and not -1", r.CPUQuota, minQuota))
	case r.CPUShares != 0 && (r.CPUShares < minShares || r.CPUShares > maxShares):
		return model.LimitCPUShares.Wrong(invalid("%d is not in 2 to %d", r.CPUShares, maxShares))
	case r.MemoryLimit < -1:
		return model.LimitMemory.Wrong(invalid("%d is negative, and not -1", r.MemoryLimit))
	case r.MemorySwap < -1:
		return model.LimitMemorySwap.Wrong(invalid("%d is negative, and not -1", r.MemorySwap))
	case r.MemorySwap > 0 && r.MemoryLimit <= 0:
		return model.LimitMemorySwap.Wrong(invalid("%d without a memory limit", r.MemorySwap))
	case r.MemorySwap > 0 && r.MemorySwap < r.MemoryLimit:
		return model.LimitMemorySwap.Wrong(invalid("%d, which includes memory, is below the memory limit %d",
			r.MemorySwap, r.MemoryLimit))
	case r.MemorySwap > 0 && r.MemorySwap > r.MemoryLimit && !h.SwapLimits: // 0 is above a limit of -1
		return model.LimitMemorySwap.Wrong(unable("%d: this kernel does not limit swap", r.MemorySwap))
	case r.OOMScoreAdj < -1000 || r.OOMScoreAdj > 1000:
		return model.LimitOOMScoreAdj.Wrong(invalid("%d is not in -1000 to 1000", r.OOMScoreAdj))
	case r.MemoryReservation < -1:
		return model.LimitMemoryReservation.Wrong(invalid("%d is negative, and not -1", r.MemoryReservation))
	case r.MemoryReservation > 0 && r.MemoryLimit > 0 && r.MemoryReservation > r.MemoryLimit:
		return model.LimitMemoryReservation.Wrong(invalid("%d is above the memory limit %d",
			r.MemoryReservation, r.MemoryLimit))
	case r.MemoryReservation != 0 && !h.Cgroups.Has("memory"):
		return model.LimitMemoryReservation.Wrong(unable("this host has no memory controller"))
	case r.PidsLimit < -1:
		return model.LimitPids.Wrong(invalid("%d is negative, and not -1", r.PidsLimit))
	case r.PidsLimit > 0 && !h.Cgroups.Has("pids"):
		return model.LimitPids.Wrong(unable("this host has no pids controller"))
	case r.KernelMemory < -1:
		return model.LimitKernelMemory.Wrong(invalid("%d is negative, and not -1", r.KernelMemory))
	}
	if err := checkV1Memory(r, h); err != nil {
		return err
	}
	for _, set := range []struct {
		field model.Field
		list  string
	}{{model.LimitCPUSetCPUs, r.CPUSetCPUs}, {model.LimitCPUSetMems, r.CPUSetMems}} {
		if len(set.list) > maxCPUList {
			return set.field.Wrong(invalid("a list of %d bytes, and the kernel takes %d", len(set.list), maxCPUList))
		}
		if set.list != "" && !cpuListValid(set.list) {
			return set.field.Wrong(invalid("%q is not a list as 0-3,8", set.list))
		}
	}
	sizes := map[string]bool{}
	for _, huge := range r.HugepageLimit {
		switch {
		case !pageSize.MatchString(huge.PageSize):
			return model.LimitHugepages.Wrong(invalid("page size %q is not as 2MB", huge.PageSize))
		case sizes[huge.PageSize]:
			return model.LimitHugepages.Wrong(invalid("page size %s is there twice", huge.PageSize))
		case huge.Limit > 0 && !h.Cgroups.Has("hugetlb"):
			// A limit of 0 comes from every kubelet; there is nothing to keep from who has no huge pages.
			return model.LimitHugepages.Wrong(unable("this host has no hugetlb controller"))
		}
		sizes[huge.PageSize] = true
	}
	for name := range r.Unified {
		if h.Cgroups.Version != cgroup.V2 {
			return model.LimitUnified.Wrong(unable("%s: this host uses cgroup v1", name))
		}
		if !fileName.MatchString(name) || strings.HasPrefix(name, "cgroup.") {
			return model.LimitUnified.Wrong(invalid("%q is not a limit's file", name))
		}
	}
	return nil
}

func cpuListValid(list string) bool {
	if !cpuList.MatchString(list) {
		return false
	}
	for part := range strings.SplitSeq(list, ",") {
		if from, to, isRange := strings.Cut(part, "-"); isRange {
			a, _ := strconv.Atoi(from) // five digits, by the pattern
			b, _ := strconv.Atoi(to)
			if a > b {
				return false
			}
		}
	}
	return true
}

// MergeResources is stored limits with an update laid over: what the update leaves zero stays as it was. Neither is
// written to, and either may be nil.
func MergeResources(stored, update *model.Resources) *model.Resources {
	var out model.Resources
	if stored != nil {
		out = *stored
	}
	out.Unified = maps.Clone(out.Unified)
	if update == nil {
		return &out
	}
	for _, field := range []struct{ to, from *int64 }{
		{&out.CPUPeriod, &update.CPUPeriod}, {&out.CPUQuota, &update.CPUQuota}, {&out.CPUShares, &update.CPUShares},
		{&out.MemoryLimit, &update.MemoryLimit}, {&out.MemorySwap, &update.MemorySwap},
		{&out.OOMScoreAdj, &update.OOMScoreAdj}, {&out.KernelMemory, &update.KernelMemory},
		{&out.MemoryReservation, &update.MemoryReservation}, {&out.PidsLimit, &update.PidsLimit},
	} {
		if *field.from != 0 {
			*field.to = *field.from
		}
	}
	if update.MemoryLimit != 0 && update.MemorySwap == 0 && out.MemorySwap > 0 {
		// The limit of swap includes memory, and may not be below that of memory.
		switch {
		case update.MemoryLimit < 0:
			out.MemorySwap = 0 // without a limit of memory there is none of both
		case stored.MemorySwap == stored.MemoryLimit, out.MemorySwap < out.MemoryLimit:
			out.MemorySwap = out.MemoryLimit // who had no swap gets none
		}
	}
	if update.MemoryLimit > 0 && update.MemoryReservation == 0 && out.MemoryReservation > 0 {
		// Nor may what is reserved be above the limit. CRI v1 has no field for it, and a pod of 2016 that requests nothing
		// has its limit reserved.
		if stored.MemoryReservation == stored.MemoryLimit || out.MemoryReservation > out.MemoryLimit {
			out.MemoryReservation = out.MemoryLimit
		}
	}
	if update.CPUSetCPUs != "" {
		out.CPUSetCPUs = update.CPUSetCPUs
	}
	if update.CPUSetMems != "" {
		out.CPUSetMems = update.CPUSetMems
	}
	if update.MemorySwappiness != nil {
		out.MemorySwappiness = update.MemorySwappiness
	}
	if len(update.DiskQuota) > 0 {
		out.DiskQuota = maps.Clone(out.DiskQuota)
		if out.DiskQuota == nil {
			out.DiskQuota = map[string]string{}
		}
		maps.Copy(out.DiskQuota, update.DiskQuota)
	}
	out.BlockIO = mergeBlockIO(out.BlockIO, update.BlockIO)
	out.Ulimits = mergeBy(out.Ulimits, update.Ulimits, func(u model.Ulimit) string { return u.Name })
	out.HugepageLimit = mergeBy(out.HugepageLimit, update.HugepageLimit,
		func(h model.HugepageLimit) string { return h.PageSize })
	if out.Unified == nil && len(update.Unified) > 0 {
		out.Unified = map[string]string{}
	}
	maps.Copy(out.Unified, update.Unified)
	return &out
}

// mergeBy is a list with another laid over: what has the same key is replaced. Neither is written to.
func mergeBy[T any](list, over []T, key func(T) string) []T {
	out := slices.Clone(list)
	for _, item := range over {
		i := slices.IndexFunc(out, func(old T) bool { return key(old) == key(item) })
		if i >= 0 {
			out[i] = item
		} else {
			out = append(out, item)
		}
	}
	return out
}
