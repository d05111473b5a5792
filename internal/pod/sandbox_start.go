package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/network"
)

// StartSandbox brings back a sandbox that stopped by accident, its namespaces or its init gone: with its ID, its
// configuration, its port mappings and its addresses. Its containers have ended with what they lived in, and stay so. A
// sandbox that is ready, or was stopped on purpose, is errdefs.ErrFailedPrecondition. When it fails, the sandbox is as
// before, and can be started again.
func (m *Manager) StartSandbox(ctx context.Context, id string) error {
	s, err := m.findSandbox(id)
	if err != nil {
		return err
	}
	if err := s.op.sem.Acquire(ctx, exclusive); err != nil {
		return fmt.Errorf("start pod sandbox %s: another operation holds it: %w", shortID(s.id), err)
	}
	defer s.op.sem.Release(exclusive)
	if m.gone(s) {
		return fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	if err := m.checkParts(ctx, s); err != nil {
		return err
	}
	switch phase := s.record().Phase; phase {
	case SandboxBroken:
	case SandboxReady:
		return fmt.Errorf("start pod sandbox %s: it runs: %w", shortID(s.id), errdefs.ErrFailedPrecondition)
	case SandboxStopped:
		return fmt.Errorf("start pod sandbox %s: it was stopped on purpose: %w", shortID(s.id), errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("start pod sandbox %s: it is %s: %w", shortID(s.id), phase, errdefs.ErrFailedPrecondition)
	}
	return m.startBroken(ctx, s)
}

func (m *Manager) startBroken(ctx context.Context, s *sandbox) error {
	old := s.record()
	before, err := networkBefore(&old)
	if err != nil {
		return err
	}
	// What runs in parts that are lost can neither be reached nor come along.
	if err := m.killContainers(ctx, s); err != nil {
		return fmt.Errorf("start pod sandbox %s: %w", shortID(s.id), err)
	}
	if err := errors.Join(m.stopReaper(ctx, s), m.namespaces(s.id).Remove(), m.unmountFiles(s.id)); err != nil {
		return fmt.Errorf("start pod sandbox %s: clear what is left of it: %w", shortID(s.id), err)
	}
	log := m.log.With("pod", old.Config.Metadata.Namespace+"/"+old.Config.Metadata.Name, "id", shortID(s.id))
	timings, _, err := runSteps(ctx, log, append([]step{{
		name: "limit the pod's cgroup",
		do:   func(context.Context) error { return m.limitPod(&s.rec) },
	}}, m.buildSandbox(s, before)...))
	if err == nil {
		err = m.setSandbox(s, func(r *SandboxRecord) {
			r.Phase = SandboxReady
			r.Timings = timings
		})
	}
	if err != nil {
		s.mu.Lock()
		s.rec.IPs, s.rec.Interface, s.rec.Network, s.rec.ReaperPID = old.IPs, old.Interface, old.Network, 0
		s.mu.Unlock()
		return fmt.Errorf("start pod %s/%s: %w", old.Config.Metadata.Namespace, old.Config.Metadata.Name, noSpace(err))
	}
	m.tell(s, s.id, model.EventStarted)
	return nil
}

// networkBefore is the network that a pod had; nil: the node's.
func networkBefore(r *SandboxRecord) (*network.Result, error) {
	if nodeNetwork(r.Config) {
		return nil, nil
	}
	before := &network.Result{Interface: r.Interface, CNI: r.Network}
	for _, text := range r.IPs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("record of pod sandbox %s: %w", shortID(r.ID), err)
		}
		before.IPs = append(before.IPs, addr)
	}
	return before, nil
}
