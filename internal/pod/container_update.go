package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/disk"
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
func (m *Manager) updateResources(ctx context.Context, c *index.Container, update *model.Resources) error {
	r := c.Record()
	pod := c.Sandbox.Record()
	handler, err := m.settings.Load().handler(pod.RuntimeName())
	if err != nil {
		return err
	}
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	if r.Phase != record.ContainerRunning && r.Phase != record.ContainerCreated {
		return fmt.Errorf("update container %s: it is %s: %w", record.ShortID(c.ID()), r.Phase, errdefs.ErrFailedPrecondition)
	}
	merged := ocispec.MergeResources(r.Resources, update)
	resources, err := ocispec.Resources(merged, handler.Spec.PidsLimit, host)
	if err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), model.FieldUpdate.Within(err))
	}
	if err := m.updateUlimits(c, r.Phase, update.Ulimits, merged.Ulimits, handler, host); err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
	}
	if err := m.updateOOMScore(c, update.OOMScoreAdj, host); err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
	}
	if len(update.DiskQuota) > 0 {
		if err := m.storage.UpdateQuotas(ctx, c.ContainerEntry, update.DiskQuota); err != nil {
			return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
		}
	}
	if r.Phase == record.ContainerRunning {
		if err := m.cfg.Keeper.Update(ctx, c.ID(), resources); err != nil {
			return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
		}
	}
	err = changeSpec(c, r.Phase, func(spec *specs.Spec) {
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
	return c.Update(record.Save, func(r *record.Container) { r.Resources = merged })
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
func changeSpec(c *index.Container, phase record.ContainerPhase, change func(*specs.Spec)) error {
	spec, err := c.LoadSpec()
	if err != nil {
		return err
	}
	next := *spec
	change(&next)
	if err := c.SaveSpec(&next); err != nil {
		return err
	}
	if phase == record.ContainerRunning {
		c.DropSpec()
	}
	return nil
}

// updateUlimits changes the limits of a created container's processes. Those of a running container are each process's
// own.
func (m *Manager) updateUlimits(c *index.Container, phase record.ContainerPhase, update, merged []model.Ulimit,
	handler Handler, host *ocispec.Host) error {
	if len(update) == 0 {
		return nil
	}
	limits, _, err := ocispec.Ulimits(merged, handler.Spec.Rlimits, host)
	if err != nil {
		return model.FieldUpdate.Within(err)
	}
	spec, err := c.LoadSpec()
	if err != nil {
		return err
	}
	if slices.Equal(limits, spec.Process.Rlimits) {
		return nil
	}
	if phase == record.ContainerRunning {
		err := fmt.Errorf("they can only be set before a container starts, and it is running: %w",
			errdefs.ErrFailedPrecondition)
		return model.FieldUpdate.Within(model.LimitUlimits.Wrong(err))
	}
	process := *spec.Process
	process.Rlimits = limits
	if err := changeSpec(c, phase, func(spec *specs.Spec) { spec.Process = &process }); err != nil {
		return err
	}
	return c.Update(record.Save, func(r *record.Container) { r.Process = &process })
}

// ReopenContainerLog makes a running container's log go to a new file at the same path, once the old one was moved
// away.
func (m *Manager) ReopenContainerLog(ctx context.Context, id string) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	r := c.Record()
	if r.Phase != record.ContainerRunning {
		return fmt.Errorf("reopen the log of container %s: %w: %w", record.ShortID(c.ID()), errNotRunning,
			errdefs.ErrFailedPrecondition)
	}
	if r.LogPath == "" {
		return fmt.Errorf("reopen the log of container %s: it has no log: %w", record.ShortID(c.ID()),
			errdefs.ErrFailedPrecondition)
	}
	if err := os.MkdirAll(filepath.Dir(r.LogPath), 0o755); err != nil {
		return disk.Exhausted(err)
	}
	if err := m.cfg.Keeper.ReopenLog(ctx, c.ID()); err != nil {
		return fmt.Errorf("reopen the log of container %s: %w", record.ShortID(c.ID()), err)
	}
	return nil
}
