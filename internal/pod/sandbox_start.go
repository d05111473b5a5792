package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/model"
	"berth/internal/network"
	"berth/internal/pod/index"
	"berth/internal/pod/parts"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// StartSandbox brings back a sandbox that stopped by accident, its namespaces or its init gone: with its ID, its
// configuration, its port mappings and its addresses. Its containers have ended with what they lived in, and stay so. A
// sandbox that is ready, or was stopped on purpose, is errdefs.ErrFailedPrecondition. When it fails, the sandbox is as
// before, and can be started again.
func (m *Manager) StartSandbox(ctx context.Context, id string) error {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "start")
	if err != nil {
		return err
	}
	defer release()
	if m.index.Gone(s) {
		return fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	if err := m.watch.CheckParts(ctx, s); err != nil {
		return err
	}
	switch phase := s.Record().Phase; phase {
	case record.SandboxBroken:
	case record.SandboxReady:
		return fmt.Errorf("start pod sandbox %s: it is already running: %w", record.ShortID(s.ID()),
			errdefs.ErrFailedPrecondition)
	case record.SandboxStopped:
		return fmt.Errorf("start pod sandbox %s: it was stopped on purpose: %w", record.ShortID(s.ID()),
			errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("start pod sandbox %s: it is %s: %w", record.ShortID(s.ID()), phase, errdefs.ErrFailedPrecondition)
	}
	return m.startBroken(ctx, s)
}

func (m *Manager) startBroken(ctx context.Context, s *index.Sandbox) error {
	old := s.Record()
	handler, err := m.settings.Load().handlerOf(&old)
	if err != nil {
		return fmt.Errorf("start pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	var before *network.Result // nil: the node's
	if !old.NodeNetwork() {
		// All its addresses, or none: a pod that comes back with fewer is another one for its clients.
		if before, err = parts.NetworkBefore(&old); err != nil {
			return err
		}
	}
	// What runs in parts that are lost can neither be reached nor come along.
	if err := m.teardown.KillContainers(ctx, s); err != nil {
		return fmt.Errorf("start pod sandbox %s: %w", record.ShortID(s.ID()), err)
	}
	err = errors.Join(
		m.parts.StopInit(ctx, s.SandboxEntry), m.parts.LeaveNetwork(ctx, s.SandboxEntry),
		m.parts.RemoveNamespaces(s.ID()), m.parts.UnmountFiles(s.ID()))
	if err != nil {
		return fmt.Errorf("start pod sandbox %s: clear what is left of it: %w", record.ShortID(s.ID()), err)
	}
	log := m.log.With("pod", old.Config.Metadata.Namespace+"/"+old.Config.Metadata.Name, "pod_id", s.ID())
	_, err = steps.Run(ctx, log, append([]steps.Step{{
		Name: "limit the pod's cgroup",
		Do:   func(context.Context) error { return m.cgroups.Limit(&old) },
	}}, m.parts.Steps(s.SandboxEntry, parts.Origin{Before: before}, handler.parts())...), m.ready(s, "StartPodSandbox"))
	if err != nil {
		back := s.Update(record.Draft, func(r *record.Sandbox) {
			r.IPs, r.Interface, r.Network, r.ReaperPID = old.IPs, old.Interface, old.Network, 0
		})
		err = errors.Join(notStarted(err), back)
		return fmt.Errorf("start pod %s/%s: %w", old.Config.Metadata.Namespace, old.Config.Metadata.Name, disk.Exhausted(err))
	}
	m.events.Tell(s, s.ID(), model.EventStarted)
	return nil
}
