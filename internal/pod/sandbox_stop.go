package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/state"
)

// StopSandbox ends what runs in a pod at once and gives back its address, its host ports and its namespaces. It is
// idempotent; a pod that does not exist is stopped.
func (m *Manager) StopSandbox(ctx context.Context, id string) error {
	s, err := m.index.sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.hold(ctx, "stop")
	if err != nil {
		return err
	}
	defer release()
	return m.stopSandboxLocked(ctx, s)
}

func (m *Manager) stopSandboxLocked(ctx context.Context, s *sandbox) error {
	phase := s.Record().Phase
	if phase == record.SandboxStopped {
		return nil
	}
	if err := m.releaseSandbox(ctx, s); err != nil {
		return fmt.Errorf("stop pod sandbox %s: %w", record.ShortID(s.id), err)
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
	m.tell(s, s.id, model.EventStopped)
	return nil
}

// releaseSandbox gives back all that a pod holds beside its records. It is idempotent, and what can go goes, whatever else
// fails.
func (m *Manager) releaseSandbox(ctx context.Context, s *sandbox) error {
	if err := m.killContainers(ctx, s); err != nil {
		return err // their network stays while they live
	}
	return errors.Join(
		m.stopReaper(ctx, s),
		m.tearDownNetwork(ctx, s),
		m.namespaces(s.id).Remove(),
		m.unmountFiles(s.id),
	)
}

// killContainers ends all containers of a pod, side by side.
func (m *Manager) killContainers(ctx context.Context, s *sandbox) error {
	var g errgroup.Group
	for _, c := range m.index.containersOf(s.id) {
		g.Go(func() error { return m.kill(ctx, c) })
	}
	return g.Wait()
}

// RemoveSandbox removes a pod with all its containers, running ones included. It is idempotent.
func (m *Manager) RemoveSandbox(ctx context.Context, id string) error {
	s, err := m.index.sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.hold(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if m.index.gone(s) {
		return nil // another removal was first
	}
	return m.removeSandboxLocked(ctx, s)
}

func (m *Manager) removeSandboxLocked(ctx context.Context, s *sandbox) error {
	if err := m.stopSandboxLocked(ctx, s); err != nil {
		return err
	}
	// Removing a pod is an intent too: a removal that ends half way is finished by the next one, or by the next start.
	if err := s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxRemoving }); err != nil {
		return err
	}
	for _, c := range m.index.containersOf(s.id) {
		if err := m.removeContainer(ctx, c); err != nil {
			return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.id), err)
		}
	}
	m.leaveCgroup(new(s.Record()))
	if err := m.discard(m.pods.Path(s.id)); err != nil {
		return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.id), err)
	}
	m.forgetSandbox(s)
	m.tell(s, s.id, model.EventDeleted)
	return nil
}

// discard takes a directory out of sight at once and removes it in the background: a writable layer may be large. On a disk that has
// no room for a further name in the trash it is removed where it is.
func (m *Manager) discard(dir string) error {
	err := os.Rename(dir, m.trashDir()+"/"+record.NewID())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if state.Full(err) {
		return m.removeInPlace(dir)
	}
	if err != nil {
		return err
	}
	select {
	case m.trashed <- struct{}{}:
	default: // the background is told already
	}
	return nil
}

// removeInPlace removes the directory of a pod, a container or a volume, its records first: what a crash leaves of it is nobody's then.
func (m *Manager) removeInPlace(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, rootfs.Remove(m.ctx, dir))
}
