package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod/plugins"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// askPlugins shows the container to plugins before its specification is written, and does what they want of it. No
// plugin joins until the creation has ended.
func (cr *creation) askPlugins(ctx context.Context) error {
	relay := cr.m.relay
	held, release, present, err := relay.Hold(ctx)
	cr.joinable = release
	if err != nil || !present {
		return err
	}
	begin := time.Now()
	spec := cr.out.Spec
	path := spec.Linux.CgroupsPath
	container := &nri.Container{ContainerStatus: cr.container.Status(), Spec: spec}
	means := nri.Means{BlockIO: cr.blockIOClass, InjectCDI: func(spec *specs.Spec, names []string) error {
		warnings, err := ocispec.InjectCDI(ctx, spec, cr.handler.Spec.CDISpecDirs, names)
		cr.out.Warnings = append(cr.out.Warnings, warnings...)
		return err
	}}
	changed, err := relay.Create(held, relay.Pod(cr.sandbox), container, means)
	cr.pluginTimings = []steps.Timing{{Step: plugins.Step, Of: buildStep, Begin: begin, Took: time.Since(begin)}}
	if err != nil {
		return err
	}
	if err := cr.adopt(spec, changed); err != nil {
		return err
	}
	if spec.Linux.CgroupsPath == path {
		return nil
	}
	dir, err := cr.m.cgroups.DirOf(spec.Linux.CgroupsPath)
	if err == nil {
		err = cr.checkCgroup(dir)
	}
	if err != nil {
		return fmt.Errorf("cgroup that NRI plugins give the container: %w", err)
	}
	return cr.container.Update(record.Save, func(r *record.Container) { r.Cgroup = dir })
}

// checkCgroup refuses a cgroup that is not the container's alone: it is removed with the container, and with all in it.
func (cr *creation) checkCgroup(dir string) error {
	exists, err := cr.m.cgroups.Exists(dir)
	if err == nil && exists {
		err = fmt.Errorf("cgroup %s exists already: %w", dir, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return err
	}
	for _, c := range cr.m.index.Containers() {
		if c.ID() != cr.id && c.Record().Cgroup == dir {
			return fmt.Errorf("cgroup %s is that of container %s: %w", dir, record.ShortID(c.ID()),
				errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// adopt takes over what plugins have changed of a specification.
func (cr *creation) adopt(spec *specs.Spec, changed *model.Resources) error {
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	cr.out.Warnings = append(cr.out.Warnings, ocispec.Fit(spec, host)...)
	if changed == nil {
		return nil
	}
	merged := ocispec.MergeResources(cr.container.Record().Resources, changed)
	// NRI's library does not write all of these, and not as an update would.
	limits, err := ocispec.Resources(&model.Resources{
		MemoryLimit: merged.MemoryLimit, MemorySwap: merged.MemorySwap, MemoryReservation: merged.MemoryReservation,
		MemorySwappiness: merged.MemorySwappiness, PidsLimit: merged.PidsLimit,
	}, 0, host)
	if err != nil {
		return fmt.Errorf("limits of NRI plugins: %v: %w", err, errdefs.ErrFailedPrecondition)
	}
	if limits.Memory != nil {
		spec.Linux.Resources.Memory = limits.Memory
	}
	if limits.Pids != nil {
		spec.Linux.Resources.Pids = limits.Pids
	}
	// A class replaces the one of an annotation, as it does in the specification, and no class removes it.
	if cr.classLimits != nil {
		merged.BlockIO = cr.classLimits
	} else if spec.Linux.Resources == nil || spec.Linux.Resources.BlockIO == nil {
		merged.BlockIO = nil
	}
	return cr.container.Update(record.Draft, func(r *record.Container) { r.Resources = merged })
}

// blockIOClass are the limits of a class of block I/O that a plugin names.
func (cr *creation) blockIOClass(class string) (*specs.LinuxBlockIO, error) {
	limits, err := cr.m.settings.Load().BlockIO.Get(class)
	if err != nil {
		return nil, err
	}
	host, err := ocispec.Detect()
	if err != nil {
		return nil, err
	}
	cr.classLimits = limits
	return ocispec.BlockIO(limits, host)
}

// forgetByPlugins tells plugins that a container that they were shown is not made after all.
func (cr *creation) forgetByPlugins(ctx context.Context) error {
	relay := cr.m.relay
	cr.letJoin()
	if cr.container != nil && relay.Knows(cr.id) {
		relay.StopContainer(ctx, cr.container)
		relay.Tell(ctx, nri.RemoveContainer, cr.sandbox, cr.container)
	}
	return nil
}

// letJoin lets plugins join again.
func (cr *creation) letJoin() {
	if cr.joinable != nil {
		cr.joinable()
	}
}

// Present are the pods and the containers that have not ended, for a plugin that joins.
func (m *Manager) Present() ([]nri.Pod, []nri.Container) {
	var pods []nri.Pod
	for _, s := range m.index.Sandboxes() {
		switch s.Record().Phase {
		case record.SandboxReady, record.SandboxBroken, record.SandboxStopped:
			pods = append(pods, *m.relay.Pod(s))
		}
	}
	var containers []nri.Container
	for _, c := range m.index.Containers() {
		switch c.Record().Phase {
		case record.ContainerCreated, record.ContainerStarting, record.ContainerRunning:
			containers = append(containers, *m.relay.Container(c))
		}
	}
	return pods, containers
}

// Apply changes the limits of a container as a plugin wants, of which plugins are not asked. The end of the container
// is errdefs.ErrNotFound.
func (m *Manager) Apply(ctx context.Context, u nri.Update) error {
	c, err := m.index.Container(u.ContainerID)
	if err != nil {
		return err
	}
	if c.ID() != u.ContainerID {
		return errdefs.ErrNotFound // the beginning of an ID, which is for people
	}
	release, err := m.lockContainer(ctx, c, "update")
	if err != nil {
		return err
	}
	defer release()
	err = m.updateResources(ctx, c, u.Resources)
	if rec := c.Record(); err != nil && (rec.Phase == record.ContainerExited || rec.Phase == record.ContainerRemoving) {
		return fmt.Errorf("%v: %w", err, errdefs.ErrNotFound) // the container has ended
	}
	return err
}
