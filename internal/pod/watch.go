package pod

import (
	"context"
	"log/slog"
	"sync"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/events"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
)

// watch follows what happens to pods and containers without a call: ends of containers and of pods' inits, and lost
// namespaces.
type watch struct {
	keeper     Keeper
	index      *index.Index
	dirs       *layout.Dirs
	events     *events.Feed
	teardown   *teardown
	ctx        context.Context // ends with the Manager
	background *sync.WaitGroup // of the Manager, which waits for it
	log        *slog.Logger
}

// lostInit is the part that a pod has lost when its init has ended.
const lostInit = "init"

// lookAtNamespaces is how often pods that are ready are looked at. The kernel tells nobody that a mount has gone but
// those who watch all mounts of the node, which each start changes. A look is a statfs for each namespace: some
// microseconds for a pod.
const lookAtNamespaces = 5 * time.Second

// reaperLives tells whether the keeper says that the init of a pod lives.
func reaperLives(status *keeper.Status) bool {
	return status != nil && status.State != keeper.StateExited
}

// breakSandbox marks a ready pod of which a part is gone. Its address stays its own, for StartSandbox. The caller holds
// the pod's lock.
func (w *watch) breakSandbox(s *index.Sandbox, lost string) error {
	metadata := s.Record().Config.Metadata
	w.log.Warn("a pod is not ready: a part of it is gone",
		"pod_id", s.ID(), "pod", metadata.Namespace+"/"+metadata.Name, "part", lost)
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

// watchKeeper follows the keeper until the manager is closed.
func (w *watch) watchKeeper() {
	for w.ctx.Err() == nil {
		err := w.keeper.Watch(w.ctx, w.keeperEvent)
		if w.ctx.Err() != nil {
			return
		}
		w.log.Warn("the keeper's events stopped; following them again", "error", err)
		select {
		case <-w.ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// keeperEvent must not block: it is called for all containers in turn.
func (w *watch) keeperEvent(e keeper.Event) {
	if e.Gone || e.Status.State != keeper.StateExited {
		return
	}
	switch s, c := w.index.ByID(e.Status.ID); {
	case c != nil:
		w.background.Go(func() { w.containerExited(c, e.Status) })
	case s != nil:
		w.background.Go(func() { w.reaperExited(s, e.Status) })
	}
}

// reaperExited marks a pod whose init is gone: the kernel has ended all in its PID namespace.
func (w *watch) reaperExited(s *index.Sandbox, st keeper.Status) {
	release, err := s.Lock(w.ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	// It may have been of an earlier life of the pod.
	if r := s.Record(); r.Phase != record.SandboxReady || r.ReaperPID != st.PID {
		return
	}
	if err := w.breakSandbox(s, lostInit); err != nil {
		w.log.Error("record that a pod is broken", "pod_id", s.ID(), "error", err)
		return
	}
	w.events.Tell(s, s.ID(), model.EventStopped)
}
