package pod

import (
	"context"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// lostInit is the part that a pod has lost when its init has ended.
const lostInit = "init"

// lookAtNamespaces is how often pods that are ready are looked at. The kernel tells nobody that a mount has gone but
// those who watch all mounts of the node, which each start changes. A look is a statfs for each namespace: some
// microseconds for a pod.
const lookAtNamespaces = 5 * time.Second

func reaperLives(status *keeper.Status) bool {
	return status != nil && status.State != keeper.StateExited
}

// breakSandbox marks a ready pod of which a part is gone. Its address stays its own, for StartSandbox. The caller holds
// the pod's lock.
func (w *watch) breakSandbox(s *index.Sandbox, lost string) error {
	metadata := s.Record().Config.Metadata
	w.log.Warn("a pod is not ready: a part of it is gone", "pod_id", s.ID(), "pod", metadata.Namespace+"/"+metadata.Name, "part", lost)
	return s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxBroken; r.ReaperPID = 0 })
}

// checkParts finds out whether a ready sandbox has lost a part of it since somebody last looked.
func (w *watch) checkParts(ctx context.Context, s *index.Sandbox) error {
	r := s.Record()
	if r.Phase != record.SandboxReady {
		return nil
	}
	lost := w.dirs.LostNamespace(new(s.Record()))
	if lost == "" && r.Config.Security.Namespaces.PID == model.NamespacePod {
		statuses, err := keeperStatuses(ctx, w.keeper)
		if err != nil {
			return err
		}
		if !reaperLives(statuses[s.ID()]) {
			lost = lostInit
		}
	}
	if lost == "" {
		return nil
	}
	return w.breakSandbox(s, lost)
}

// watchNamespaces marks ready pods whose namespaces somebody has taken away. No call waits for it.
func (w *watch) watchNamespaces() {
	tick := time.NewTicker(lookAtNamespaces)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range w.index.Sandboxes() {
			if s.Status().State == model.SandboxReady {
				w.checkNamespaces(s)
			}
		}
	}
}

// checkNamespaces looks at one pod. A run, a stop or a removal has namespaces come and go while the record says ready:
// a pod that is held by one is looked at another time.
func (w *watch) checkNamespaces(s *index.Sandbox) {
	if w.dirs.LostNamespace(new(s.Record())) == "" {
		return
	}
	release := s.TryShare()
	if release == nil {
		return
	}
	defer release()
	lost := w.dirs.LostNamespace(new(s.Record()))
	if lost == "" || s.Record().Phase != record.SandboxReady || w.index.Gone(s) {
		return
	}
	if err := w.breakSandbox(s, lost); err != nil {
		w.log.Error("record that a pod is broken", "pod_id", s.ID(), "error", err)
		return
	}
	w.events.Tell(s, s.ID(), model.EventStopped)
}
