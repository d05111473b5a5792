package teardown

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// StopSandbox kills the containers of a pod and releases everything that the pod holds except its records. It is
// idempotent. The caller holds the pod's lock.
func (td *Teardown) StopSandbox(ctx context.Context, s *index.Sandbox) error {
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
	td.Events.Tell(s, s.ID(), model.EventStopped)
	return nil
}

// releaseSandbox releases everything that a pod holds except its records. It is idempotent. If one part cannot be
// released, the others still are.
func (td *Teardown) releaseSandbox(ctx context.Context, s *index.Sandbox) error {
	if err := td.KillContainers(ctx, s); err != nil {
		return err // their network stays while they live
	}
	for _, c := range td.Index.ContainersOf(s.ID()) {
		td.Plugins.StopContainer(ctx, c)
	}
	if td.Plugins.Knows(s.ID()) {
		td.Plugins.Tell(ctx, nri.StopPod, s, nil)
	}
	r := s.Record()
	if err := td.Cgroups.RemoveSandbox(&r); err != nil { // somebody else has put a process into it
		td.Log.Warn("remove the cgroup of a pod's sandbox", "pod_id", s.ID(), "error", err)
	}
	network := td.Parts.ForgetNetwork
	if r.Phase == record.SandboxCreating { // the undo of RunPodSandbox, after which clients see what is left of the pod
		network = td.Parts.TearDownNetwork
	}
	return errors.Join(
		td.Parts.StopInit(ctx, s.SandboxEntry),
		network(ctx, s.SandboxEntry),
		td.Parts.RemoveNamespaces(s.ID()), // after the network, which may need its namespace
		td.Parts.UnmountFiles(s.ID()),
	)
}

// KillContainers ends all containers of a pod, side by side.
func (td *Teardown) KillContainers(ctx context.Context, s *index.Sandbox) error {
	var g errgroup.Group
	for _, c := range td.Index.ContainersOf(s.ID()) {
		g.Go(func() error { return td.Kill(ctx, c) })
	}
	return g.Wait()
}

// RemoveSandbox stops a pod, and removes its containers and its record. It is idempotent. The caller holds the pod's
// lock.
func (td *Teardown) RemoveSandbox(ctx context.Context, s *index.Sandbox) error {
	if err := td.StopSandbox(ctx, s); err != nil {
		return err
	}
	// The removal is recorded before it begins: the next call, or the next start of berthd, finishes one that was cut off.
	if err := s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxRemoving }); err != nil {
		return err
	}
	for _, c := range td.Index.ContainersOf(s.ID()) {
		if err := td.RemoveContainer(ctx, c); err != nil {
			return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.ID()), err)
		}
	}
	td.Plugins.Tell(ctx, nri.RemovePod, s, nil)
	td.Cgroups.Leave(new(s.Record()))
	if err := td.Trash.Discard(td.Pods.Path(s.ID())); err != nil {
		return fmt.Errorf("remove pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	td.ForgetSandbox(s)
	td.Events.Tell(s, s.ID(), model.EventDeleted)
	return nil
}

// ForgetSandbox drops a sandbox of which nothing but the record is left.
func (td *Teardown) ForgetSandbox(s *index.Sandbox) {
	r := s.Record()
	td.Cgroups.Leave(&r) // while the record says what is to be removed
	if err := td.Trash.Discard(td.Pods.Path(s.ID())); err != nil {
		td.Log.Error("remove a pod's directory", "pod_id", s.ID(), "error", err)
	}
	if err := rootfs.Remove(context.Background(), td.Dirs.StatePod(s.ID())); err != nil {
		td.Log.Error("remove a pod's state directory", "pod_id", s.ID(), "error", err)
	}
	td.Devices.FreePod(s.ID())
	td.Plugins.Forget(s.ID())
	r.Label.Release()
	td.Index.ForgetSandbox(s)
	td.Sampler.Forget(s.ID())
}
