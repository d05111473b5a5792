package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// UpdateSandboxResources changes the limits of a whole pod: its overhead and what its containers have together. What is
// nil or zero stays as it was. Limits that the kernel refuses change nothing.
//
// Who made the pod's cgroup keeps its limits. A kubelet makes it before the pod runs, and writes to it itself right
// after this call: Berth remembers and reports then, and writes where the cgroup is its own.
func (m *Manager) UpdateSandboxResources(ctx context.Context, id string, overhead, resources *model.Resources) error {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "update")
	if err != nil {
		return err
	}
	defer release()
	if m.index.Gone(s) {
		return fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	old := s.Record()
	if old.Phase != record.SandboxReady {
		return fmt.Errorf("update pod sandbox %s: %w", record.ShortID(s.ID()), errSandboxNotReady)
	}
	held, let, present, err := m.relay.Hold(ctx)
	defer let()
	if err == nil && present {
		err = m.relay.UpdatePod(held, m.relay.Pod(s), overhead, resources)
	}
	if err != nil {
		return fmt.Errorf("update pod sandbox %s: %w", record.ShortID(s.ID()), err)
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
	saved := m.cgroups.Save(&next)
	err = m.cgroups.Limit(&next)
	if err == nil {
		err = s.Update(record.Save, func(r *record.Sandbox) { r.Config = &config })
	}
	if err != nil {
		clean, cancel := undo.Context(ctx)
		defer cancel()
		if back := m.cgroups.UndoLimit(clean, &old, &next, saved); back != nil {
			m.log.Error("set the limits of a pod back after a failed update", "pod_id", s.ID(), "error", back)
		}
		return fmt.Errorf("update pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	m.relay.Tell(held, nri.PodUpdated, s, nil)
	return nil
}
