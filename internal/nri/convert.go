package nri

import (
	"maps"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/rawenv"
)

// podOf is a pod in NRI's words.
func podOf(p *Pod) *api.PodSandbox {
	config := p.Config
	return &api.PodSandbox{
		Id:             p.ID,
		Name:           config.Metadata.Name,
		Uid:            config.Metadata.UID,
		Namespace:      config.Metadata.Namespace,
		Labels:         config.Labels,
		Annotations:    config.Annotations,
		RuntimeHandler: p.RuntimeHandler,
		Pid:            uint32(p.PID),
		Ips:            p.IPs,
		Linux: &api.LinuxPodSandbox{
			Namespaces:   api.FromOCILinuxNamespaces(p.Namespaces),
			PodOverhead:  limitsOf(config.Overhead),
			PodResources: limitsOf(config.Resources),
			CgroupParent: p.CgroupParent,
			CgroupsPath:  p.CgroupsPath,
		},
	}
}

// containerOf is a container in NRI's words.
func containerOf(c *Container) *api.Container {
	config, spec := c.Config, c.Spec
	out := &api.Container{
		Id:            c.ID,
		PodSandboxId:  c.SandboxID,
		Name:          config.Metadata.Name,
		State:         stateOf(c.State),
		Labels:        config.Labels,
		Annotations:   maps.Clone(spec.Annotations),
		Mounts:        api.FromOCIMounts(spec.Mounts),
		Hooks:         api.FromOCIHooks(spec.Hooks),
		Pid:           uint32(c.PID),
		CreatedAt:     nanoseconds(c.CreatedAt),
		StartedAt:     nanoseconds(c.StartedAt),
		FinishedAt:    nanoseconds(c.FinishedAt),
		ExitCode:      c.ExitCode,
		StatusReason:  c.Reason,
		StatusMessage: c.Message,
		Image:         &api.Image{Name: config.Image.Image, ConfigDigest: c.ImageID},
		Linux:         &api.LinuxContainer{SeccompProfile: profileOf(config.Security.Seccomp)},
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	maps.Copy(out.Annotations, config.Annotations)
	for _, name := range config.CDIDevices {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: name})
	}
	if p := spec.Process; p != nil {
		out.Args, out.Env = slices.Clone(p.Args), rawenv.Valid(p.Env) // protobuf has no other strings
		out.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: slices.Clone(p.User.AdditionalGids)}
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
		out.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
		out.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
		if p.Scheduler != nil {
			out.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
		}
	}
	if l := spec.Linux; l != nil {
		out.Linux.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
		out.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		out.Linux.Resources = api.FromOCILinuxResources(l.Resources, spec.Annotations)
		out.Linux.CgroupsPath = l.CgroupsPath
		out.Linux.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
		out.Linux.Sysctl = maps.Clone(l.Sysctl)
		if l.IntelRdt != nil {
			out.Linux.Rdt = rdtOf(l.IntelRdt)
		}
		if l.Seccomp != nil {
			out.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
	}
	return out
}

func rdtOf(r *specs.LinuxIntelRdt) *api.LinuxRdt {
	return &api.LinuxRdt{
		ClosId: api.String(r.ClosID), Schemata: api.RepeatedString(r.Schemata),
		EnableMonitoring: api.Bool(r.EnableMonitoring),
	}
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func stateOf(s model.ContainerState) api.ContainerState {
	switch s {
	case model.ContainerCreated:
		return api.ContainerState_CONTAINER_CREATED
	case model.ContainerRunning:
		return api.ContainerState_CONTAINER_RUNNING
	case model.ContainerPaused:
		return api.ContainerState_CONTAINER_PAUSED
	case model.ContainerExited:
		return api.ContainerState_CONTAINER_STOPPED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

// profileOf is how a client has chosen the seccomp profile. No profile is Unconfined, as the CRI has it.
func profileOf(p *model.SecurityProfile) *api.SecurityProfile {
	if p == nil {
		return nil
	}
	out := &api.SecurityProfile{LocalhostRef: p.LocalhostRef}
	switch p.Type {
	case model.ProfileUnconfined:
		out.ProfileType = api.SecurityProfile_UNCONFINED
	case model.ProfileLocalhost:
		out.ProfileType = api.SecurityProfile_LOCALHOST
	case model.ProfileRuntimeDefault:
		out.ProfileType = api.SecurityProfile_RUNTIME_DEFAULT
	}
	return out
}

// limitsOf are limits in NRI's words.
func limitsOf(r *model.Resources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{
		Cpu: &api.LinuxCPU{
			Shares: api.UInt64(uint64(r.CPUShares)), Quota: api.Int64(r.CPUQuota), Period: api.UInt64(uint64(r.CPUPeriod)),
			Cpus: r.CPUSetCPUs, Mems: r.CPUSetMems,
		},
		Memory:  &api.LinuxMemory{Limit: api.Int64(r.MemoryLimit)},
		Unified: maps.Clone(r.Unified),
	}
	if r.PidsLimit != 0 {
		out.Pids = &api.LinuxPids{Limit: r.PidsLimit}
	}
	for _, h := range r.HugepageLimit {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: h.PageSize, Limit: h.Limit})
	}
	return out
}

// resourcesOf puts limits of NRI over those of base, which has limits that NRI does not know; nil: none.
func resourcesOf(r *api.LinuxResources, base *model.Resources) *model.Resources {
	var out model.Resources
	if base != nil {
		out = *base
	}
	if r == nil {
		return &out
	}
	if c := r.Cpu; c != nil {
		if c.Shares != nil {
			out.CPUShares = int64(c.Shares.GetValue())
		}
		if c.Quota != nil {
			out.CPUQuota = c.Quota.GetValue()
		}
		if c.Period != nil {
			out.CPUPeriod = int64(c.Period.GetValue())
		}
		if c.Cpus != "" {
			out.CPUSetCPUs = c.Cpus
		}
		if c.Mems != "" {
			out.CPUSetMems = c.Mems
		}
	}
	memory := r.GetMemory()
	if limit := memory.GetLimit().GetValue(); limit != 0 && limit != out.MemoryLimit {
		// The limit of swap includes memory. The one of base, which plugins are not told, follows, or it would be too low, or
		// give swap.
		switch swap := &out.MemorySwap; {
		case *swap <= 0: // it is not limited
		case limit < 0:
			*swap = 0
		case *swap == out.MemoryLimit, *swap < limit:
			*swap = limit
		}
		out.MemoryLimit = limit
		if limit > 0 {
			out.MemoryReservation = min(out.MemoryReservation, limit) // nor may more be reserved
		}
	}
	if swap := memory.GetSwap().GetValue(); swap != 0 {
		out.MemorySwap = swap
	}
	if reservation := memory.GetReservation().GetValue(); reservation != 0 {
		out.MemoryReservation = reservation
	}
	if s := memory.GetSwappiness(); s != nil {
		swappiness := int64(s.GetValue())
		out.MemorySwappiness = &swappiness
	}
	if r.Pids != nil {
		out.PidsLimit = r.Pids.Limit
	}
	if len(r.HugepageLimits) > 0 {
		out.HugepageLimit = nil
		for _, h := range r.HugepageLimits {
			out.HugepageLimit = append(out.HugepageLimit, model.HugepageLimit{PageSize: h.PageSize, Limit: h.Limit})
		}
	}
	if len(r.Unified) > 0 {
		out.Unified = maps.Clone(out.Unified)
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		maps.Copy(out.Unified, r.Unified)
	}
	return &out
}

// unsettable are those of a plugin's limits that this runtime does not set, by their names in NRI. exists says that the
// container has been created already. What the kernel does anyway is not among them.
func unsettable(r *api.LinuxResources, exists bool) (names []string) {
	memory, cpu := r.GetMemory(), r.GetCpu()
	for _, limit := range []struct {
		name   string
		wanted bool
	}{
		{"memory.kernel", memory.GetKernel().GetValue() > 0},
		{"memory.kernel_tcp", memory.GetKernelTcp().GetValue() > 0},
		{"memory.disable_oom_killer", memory.GetDisableOomKiller().GetValue()},
		{"memory.use_hierarchy", memory.GetUseHierarchy() != nil && !memory.GetUseHierarchy().GetValue()},
		{"cpu.realtime_runtime", exists && cpu.GetRealtimeRuntime() != nil},
		{"cpu.realtime_period", exists && cpu.GetRealtimePeriod() != nil},
		{"blockio_class", exists && r.GetBlockioClass() != nil},
		{"rdt_class", exists && r.GetRdtClass() != nil},
		{"devices", exists && len(r.GetDevices()) > 0},
	} {
		if limit.wanted {
			names = append(names, limit.name)
		}
	}
	return names
}
