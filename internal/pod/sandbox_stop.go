package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// StopSandbox ends what runs in a pod at once and gives back its address, its host ports and its namespaces. It is
// idempotent; a pod that does not exist is stopped.
func (m *Manager) StopSandbox(ctx context.Context, id string) error {
	s, err := m.index.Sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	defer release()
	return m.teardown.stopSandbox(ctx, s)
}

func (td *teardown) stopSandbox(ctx context.Context, s *index.Sandbox) error {
	phase := s.Record().Phase
	if phase == record.SandboxStopped {
		return nil
	}
	if err := td.releaseSandbox(ctx, s); err != nil {
		return fmt.Errorf("stop pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	if phase == record.SandboxCreating || phase == record.SandboxRemoving {
		return nil
	}
	err := s.Update(record.Happened, func(r *record.Sandbox) {
		r.Phase = record.SandboxStopped
		r.IPs, r.Network, r.ReaperPID = nil, nil, 0
	})
	if err != nil {
		return err
	}
	td.events.Tell(s, s.ID(), model.EventStopped)
	return nil
}

// releaseSandbox gives back all that a pod holds beside its records. It is idempotent, and what can go goes, whatever
// else fails.
func (td *teardown) releaseSandbox(ctx context.Context, s *index.Sandbox) error {
	if err := td.killContainers(ctx, s); err != nil {
		return err // their network stays while they live
	}
	r := s.Record()
	if err := td.cgroups.RemoveSandbox(&r); err != nil { // somebody else has put a process into it
		td.log.Warn("remove the cgroup of a pod's sandbox", "pod_id", s.ID(), "error", err)
	}
	return errors.Join(
		td.parts.StopInit(ctx, s.SandboxEntry),
		td.parts.TearDownNetwork(ctx, s.SandboxEntry),
		td.dirs.Namespaces(s.ID()).Remove(),
		td.parts.UnmountFiles(s.ID()),
	)
}

// killContainers ends all containers of a pod, side by side.
func (td *teardown) killContainers(ctx context.Context, s *index.Sandbox) error {
	var g errgroup.Group
	for _, c := range td.index.ContainersOf(s.ID()) {
		g.Go(func() error { return td.kill(ctx, c) })
	}
	return g.Wait()
}

// RemoveSandbox removes a pod with all its containers, running ones included. It is idempotent.
func (m *Manager) RemoveSandbox(ctx context.Context, id string) error {
	s, err := m.index.Sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if m.index.Gone(s) {
		return nil // another removal was first
	}
	return m.teardown.removeSandbox(ctx, s)
}

func (td *teardown) removeSandbox(ctx context.Context, s *index.Sandbox) error {
	if err := td.stopSandbox(ctx, s); err != nil {
		return err
	}
	// Removing a pod is an intent too: a removal that ends half way is finished by the next one, or by the next start.
	if err := s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxRemoving }); err != nil {
		return err
	}
	for _, c := range td.index.ContainersOf(s.ID()) {
		if err := td.removeContainer(ctx, c); err != nil {
			return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.ID()), err)
		}
	}
	td.cgroups.Leave(new(s.Record()))
	if err := td.trash.Discard(td.pods.Path(s.ID())); err != nil {
		return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	td.forgetSandbox(s)
	td.events.Tell(s, s.ID(), model.EventDeleted)
	return nil
}
