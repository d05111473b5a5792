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

// logPatience is how long the end of a container waits for the last of its output to be in its log. A process outside
// the container that holds the pipe open must not keep the container from ending.
const logPatience = 2 * time.Second

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

// containerExited takes over how a container ended. The event comes twice, before and after the log is complete.
func (w *watch) containerExited(c *index.Container, st keeper.Status) {
	if !st.LogDone {
		select {
		case <-c.Exited(): // the second event did it
			return
		case <-w.ctx.Done():
			return
		case <-time.After(logPatience):
			w.log.Warn("a container has ended, but something still holds its output open", "container_id", c.ID())
		}
	}
	// A start that is on its way records its own end first.
	release, err := c.Lock(w.ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	w.teardown.adoptExit(w.ctx, c, st)
}

// adoptExit records the end of a container that the keeper reports and lets the keeper forget it. The caller holds the
// container's lock.
func (td *teardown) adoptExit(ctx context.Context, c *index.Container, st keeper.Status) {
	r := c.Record()
	if r.Phase == record.ContainerStarting || r.Phase == record.ContainerRunning {
		td.finish(c, func(r *record.Container) {
			if r.StartedAt.IsZero() {
				r.StartedAt = st.StartedAt
			}
			r.FinishedAt = st.FinishedAt
			r.ExitCode = int32(st.ExitCode)
			r.Reason, r.Message = reasonOf(st)
		})
	}
	if err := td.keeper.Delete(ctx, c.ID()); err != nil {
		td.log.Warn("the keeper did not forget a container that has ended", "container_id", c.ID(), "error", err)
	}
	if c.Record().Phase == record.ContainerExited {
		if err := td.storage.UnmountContainer(c.ContainerEntry, new(c.Sandbox.Record())); err != nil {
			td.log.Warn("unmount what a container that has ended had mounted", "container_id", c.ID(), "error", err)
		}
	}
}

func reasonOf(st keeper.Status) (reason, message string) {
	switch {
	case st.Lost:
		return model.ReasonKeeperLost, "the container ended while no keeper watched it, and the kernel kept no exit code"
	case st.OOMKilled:
		return model.ReasonOOMKilled, ""
	case st.ExitCode == 0:
		return model.ReasonCompleted, ""
	}
	return model.ReasonError, ""
}

// finish makes a container exited.
func (td *teardown) finish(c *index.Container, change func(*record.Container)) {
	set := func(r *record.Container) {
		r.Phase = record.ContainerExited
		r.PID = 0
		r.Paused = false
		change(r)
		if r.FinishedAt.IsZero() {
			r.FinishedAt = time.Now()
		}
	}
	if err := c.Update(record.Happened, set); err != nil {
		td.log.Error("record the end of a container", "container_id", c.ID(), "error", err)
	}
	td.logs.Release(c.ID())
	td.events.Tell(c.Sandbox, c.ID(), model.EventStopped) // before whoever waits for the end goes on and tells of the pod's
	c.Ended()
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
