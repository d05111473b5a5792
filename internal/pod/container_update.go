package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
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
	release, err := m.lockContainer(ctx, c, "update")
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
	if u.handler, err = m.settings.Load().handlerOf(&pod); err == nil {
		err = u.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("update container %s: %w", record.ShortID(c.ID()), err)
	}
	return nil
}

// update is one change of a container's limits, all or nothing. The caller holds the container's lock.
type update struct {
	m         *Manager
	container *index.Container
	rec       record.Container // as it was before
	handler   Handler
	host      *ocispec.Host
	limits    *model.Resources // what changes; values that are zero stay as they were
	merged    *model.Resources // all that then hold
	resources *specs.LinuxResources
	before    *specs.LinuxResources // of the cgroup; nil: it has not been changed
	saved     *cgroup.Saved         // the files of the cgroup that before has no value for

	ulimits []specs.POSIXRlimit // nil: they stay
	score   *int                // oom_score_adj; nil: it stays
	scores  map[int]int         // what processes had before
	restore func() error        // gives back the disk quotas; nil: none has changed
}

func (u *update) run(ctx context.Context) (err error) {
	if u.rec.Phase != record.ContainerRunning && u.rec.Phase != record.ContainerCreated {
		return fmt.Errorf("it is %s: %w", u.rec.Phase, errdefs.ErrFailedPrecondition)
	}
	u.merged = ocispec.MergeResources(u.rec.Resources, u.limits)
	// The limit of processes that the handler has now is for later containers. This one keeps its own: see save.
	if u.resources, err = ocispec.Resources(u.merged, 0, u.host); err != nil {
		return model.FieldUpdate.Within(err)
	}
	if err := u.checkUlimits(); err != nil {
		return err
	}
	u.chooseScore()
	_, err = steps.Run(ctx, u.m.log.With("container_id", u.container.ID()), []steps.Step{
		{Do: u.scoreProcesses, Undo: u.scoreBack},
		{Do: u.changeQuotas, Undo: u.quotasBack},
		{Do: u.limitCgroup, Undo: u.cgroupBack},
	}, func([]steps.Timing) error { return u.save() })
	return err
}

// changeQuotas changes the disk quotas.
func (u *update) changeQuotas(ctx context.Context) (err error) {
	if len(u.limits.DiskQuota) > 0 {
		u.restore, err = u.m.storage.UpdateQuotas(ctx, u.container.ContainerEntry, u.limits.DiskQuota, u.merged.DiskQuota)
	}
	return err
}

func (u *update) quotasBack(context.Context) error {
	if u.restore == nil {
		return nil
	}
	return u.restore()
}

// limitCgroup changes the limits of a container that runs. One that is created has no cgroup yet.
func (u *update) limitCgroup(ctx context.Context) error {
	if u.rec.Phase != record.ContainerRunning {
		return nil
	}
	spec, err := u.container.LoadSpec()
	if err != nil {
		return err
	}
	dir, err := u.m.cgroups.DirOf(spec.Linux.CgroupsPath)
	if err != nil {
		return err
	}
	u.before, u.saved = spec.Linux.Resources, u.host.Cgroups.Save(dir, u.resources)
	return u.m.cfg.Keeper.Update(ctx, u.container.ID(), u.resources)
}

// cgroupBack gives back the limits of the cgroup. The kernel may have taken some of them before it refused another.
func (u *update) cgroupBack(ctx context.Context) error {
	if u.before == nil {
		return nil
	}
	err := u.m.cfg.Keeper.Update(ctx, u.container.ID(), ocispec.UndoResources(u.before, u.resources, u.host))
	// The files come last: an OCI runtime, libcontainer and systemd know no value that takes a limit of these away.
	return errors.Join(err, u.saved.Restore(ctx, u.m.cfg.SystemdCgroup))
}

// save writes the limits to the container's specification and its record. A start reads them from the specification,
// and verbose status and checkpoints show it. Neither is changed if one cannot be written.
func (u *update) save() error {
	spec, err := u.container.LoadSpec()
	if err != nil {
		return err
	}
	next, linux, limits := *spec, *spec.Linux, *u.resources
	// An update says nothing of these.
	limits.Devices, limits.Network = linux.Resources.Devices, linux.Resources.Network
	if limits.Pids == nil {
		limits.Pids = linux.Resources.Pids
	}
	keepRealtime(&limits, linux.Resources)
	linux.Resources = &limits
	next.Linux, next.Process = &linux, u.changed(spec.Process)
	if err := u.container.SaveSpec(&next); err != nil {
		return err
	}
	err = u.container.Update(record.Save, func(r *record.Container) {
		r.Resources, r.Process = u.merged, u.changed(r.Process)
	})
	if err != nil {
		err = errors.Join(err, u.container.SaveSpec(spec))
	}
	if u.rec.Phase == record.ContainerRunning {
		u.container.DropSpec()
	}
	return err
}

// changed is a process with what the update changes of it. nil stays nil: records of earlier versions have none.
func (u *update) changed(p *specs.Process) *specs.Process {
	if p == nil || u.ulimits == nil && u.score == nil {
		return p
	}
	next := *p
	if u.ulimits != nil {
		next.Rlimits = u.ulimits
	}
	if u.score != nil {
		next.OOMScoreAdj = u.score
	}
	return &next
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

// checkUlimits finds the limits of a created container's processes. Those of a running container are each process's
// own.
func (u *update) checkUlimits() error {
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
		err := fmt.Errorf("they can only be set before the container starts, and it is running: %w",
			errdefs.ErrFailedPrecondition)
		return model.FieldUpdate.Within(model.LimitUlimits.Wrong(err))
	}
	u.ulimits = limits
	return nil
}
