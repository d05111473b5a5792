package pod

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// UpdateContainerResources changes the limits of a created or running container. Values that are zero stay as they
// were. What the kernel refuses changes nothing.
func (m *Manager) UpdateContainerResources(ctx context.Context, id string, update *model.Resources,
	annotations map[string]string) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	if update == nil {
		return fmt.Errorf("update container %s: linux resources are not set: %w", record.ShortID(c.ID()),
			errdefs.ErrInvalidArgument)
	}
	release, err := c.Lock(ctx, "update")
	if err != nil {
		return err
	}
	defer release()
	held, let, present, err := m.relay.Hold(ctx)
	defer let()
	if err == nil && present {
		update, err = m.relay.Update(held, m.relay.Pod(c.Sandbox), m.relay.Container(c), update)
	}
	if err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
	}
	if err := m.updateResources(ctx, c, update); err != nil {
		return err
	}
	m.relay.Tell(held, nri.ContainerUpdated, c.Sandbox, c)
	return nil
}

// updateResources changes the limits, for a call or for an NRI plugin. The caller holds the container's lock.
func (m *Manager) updateResources(ctx context.Context, c *index.Container, limits *model.Resources) error {
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	u := &update{m: m, container: c, rec: c.Record(), host: host, limits: limits}
	pod := c.Sandbox.Record()
	if u.handler, err = m.settings.Load().handler(pod.RuntimeName()); err != nil {
		return err
	}
	if err := u.run(ctx); err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
	}
	return nil
}

// update is one change of a container's limits. The caller holds the container's lock.
type update struct {
	m         *Manager
	container *index.Container
	rec       record.Container // as it was before
	handler   Handler
	host      *ocispec.Host
	limits    *model.Resources // what changes; values that are zero stay as they were
	merged    *model.Resources // all that then hold
}

func (u *update) run(ctx context.Context) error {
	if u.rec.Phase != record.ContainerRunning && u.rec.Phase != record.ContainerCreated {
		return fmt.Errorf("it is %s: %w", u.rec.Phase, errdefs.ErrFailedPrecondition)
	}
	u.merged = ocispec.MergeResources(u.rec.Resources, u.limits)
	resources, err := ocispec.Resources(u.merged, u.handler.Spec.PidsLimit, u.host)
	if err != nil {
		return model.FieldUpdate.Within(err)
	}
	if err := u.ulimits(); err != nil {
		return err
	}
	if err := u.oomScore(); err != nil {
		return err
	}
	if len(u.limits.DiskQuota) > 0 {
		if err := u.m.storage.UpdateQuotas(ctx, u.container.ContainerEntry, u.limits.DiskQuota); err != nil {
			return err
		}
	}
	if u.rec.Phase == record.ContainerRunning {
		if err := u.m.cfg.Keeper.Update(ctx, u.container.ID(), resources); err != nil {
			return err
		}
	}
	err = u.changeSpec(func(spec *specs.Spec) {
		linux := *spec.Linux
		limits := *resources
		// An update says nothing of these.
		limits.Devices, limits.Network = linux.Resources.Devices, linux.Resources.Network
		keepRealtime(&limits, linux.Resources)
		linux.Resources = &limits
		spec.Linux = &linux
	})
	if err != nil {
		return err
	}
	return u.container.Update(record.Save, func(r *record.Container) { r.Resources = u.merged })
}

// keepRealtime keeps what plugins have given a container, and no update knows of.
func keepRealtime(limits, before *specs.LinuxResources) {
	if before.CPU == nil || before.CPU.RealtimeRuntime == nil && before.CPU.RealtimePeriod == nil {
		return
	}
	cpu := specs.LinuxCPU{}
	if limits.CPU != nil {
		cpu = *limits.CPU
	}
	cpu.RealtimeRuntime, cpu.RealtimePeriod = before.CPU.RealtimeRuntime, before.CPU.RealtimePeriod
	limits.CPU = &cpu
}

// changeSpec writes the current limits to a container's specification. A start reads them from there, and verbose
// status and checkpoints show them. change gets a copy of the specification, and must not write through its pointers.
func (u *update) changeSpec(change func(*specs.Spec)) error {
	spec, err := u.container.LoadSpec()
	if err != nil {
		return err
	}
	next := *spec
	change(&next)
	if err := u.container.SaveSpec(&next); err != nil {
		return err
	}
	if u.rec.Phase == record.ContainerRunning {
		u.container.DropSpec()
	}
	return nil
}

// ulimits changes the limits of a created container's processes. Those of a running container are each process's own.
func (u *update) ulimits() error {
	if len(u.limits.Ulimits) == 0 {
		return nil
	}
	limits, _, err := ocispec.Ulimits(u.merged.Ulimits, u.handler.Spec.Rlimits, u.host)
	if err != nil {
		return model.FieldUpdate.Within(err)
	}
	spec, err := u.container.LoadSpec()
	if err != nil {
		return err
	}
	if slices.Equal(limits, spec.Process.Rlimits) {
		return nil
	}
	if u.rec.Phase == record.ContainerRunning {
		err := fmt.Errorf("they can only be set before a container starts, and it is running: %w",
			errdefs.ErrFailedPrecondition)
		return model.FieldUpdate.Within(model.LimitUlimits.Wrong(err))
	}
	process := *spec.Process
	process.Rlimits = limits
	if err := u.changeSpec(func(spec *specs.Spec) { spec.Process = &process }); err != nil {
		return err
	}
	return u.container.Update(record.Save, func(r *record.Container) { r.Process = &process })
}
