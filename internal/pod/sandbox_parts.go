package pod

import (
	"context"
	"time"

	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/record"
)

// lostInit is the part that a pod has lost when its init has ended.
const lostInit = "init"

// lookAtNamespaces is how often pods that are ready are looked at. The kernel tells nobody that a mount has gone but those who watch all
// mounts of the node, which each start changes. A look is a statfs for each namespace: some microseconds for a pod.
const lookAtNamespaces = 5 * time.Second

// lostNamespace is a namespace that a pod's record promises and that is not there, such as "net namespace"; empty: all are there. After
// a reboot they are not.
func (m *Manager) lostNamespace(s *sandbox) string {
	r, set := s.Record(), m.namespaces(s.id)
	for _, part := range []struct {
		kind     namespace.Kind
		promised bool
	}{
		{namespace.Network, !r.NodeNetwork()},
		{namespace.UTS, !r.NodeNetwork()},
		{namespace.IPC, ownShm(r.Config)},
		{namespace.User, userNamespace(r.Config) != nil},
		{namespace.PID, r.Config.Security.Namespaces.PID == model.NamespacePod},
	} {
		if part.promised && !set.Pinned(part.kind) {
			return string(part.kind) + " namespace"
		}
	}
	return ""
}

func reaperLives(row *keeper.Status) bool { return row != nil && row.State != keeper.StateExited }

// breakSandbox marks a ready pod of which a part is gone. Its address stays its own, for StartSandbox. The caller holds s.op.
func (m *Manager) breakSandbox(s *sandbox, lost string) error {
	metadata := s.Record().Config.Metadata
	m.log.Warn("a pod is not ready: a part of it is gone", "pod_id", record.ShortID(s.id), "pod", metadata.Namespace+"/"+metadata.Name, "lost", lost)
	return s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxBroken; r.ReaperPID = 0 })
}

// checkParts finds out whether a ready sandbox has lost a part of it since somebody last looked.
func (m *Manager) checkParts(ctx context.Context, s *sandbox) error {
	r := s.Record()
	if r.Phase != record.SandboxReady {
		return nil
	}
	lost := m.lostNamespace(s)
	if lost == "" && r.Config.Security.Namespaces.PID == model.NamespacePod {
		rows, err := m.keeperRows(ctx)
		if err != nil {
			return err
		}
		if !reaperLives(rows[s.id]) {
			lost = lostInit
		}
	}
	if lost == "" {
		return nil
	}
	return m.breakSandbox(s, lost)
}

// watchNamespaces marks ready pods whose namespaces somebody has taken away. No call waits for it.
func (m *Manager) watchNamespaces() {
	tick := time.NewTicker(lookAtNamespaces)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.index.mu.RLock()
		ready := make([]*sandbox, 0, len(m.index.pods))
		for _, s := range m.index.pods {
			if s.Status().State == model.SandboxReady {
				ready = append(ready, s)
			}
		}
		m.index.mu.RUnlock()
		for _, s := range ready {
			m.checkNamespaces(s)
		}
	}
}

// checkNamespaces looks at one pod. A run, a stop or a removal has namespaces come and go while the record says ready: a pod that is held
// by one is looked at another time.
func (m *Manager) checkNamespaces(s *sandbox) {
	if m.lostNamespace(s) == "" {
		return
	}
	release := s.op.TryShared()
	if release == nil {
		return
	}
	defer release()
	lost := m.lostNamespace(s)
	if lost == "" || s.Record().Phase != record.SandboxReady || m.index.gone(s) {
		return
	}
	if err := m.breakSandbox(s, lost); err != nil {
		m.log.Error("record that a pod is broken", "pod_id", record.ShortID(s.id), "error", err)
		return
	}
	m.tell(s, s.id, model.EventStopped)
}
