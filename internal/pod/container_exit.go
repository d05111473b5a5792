package pod

import (
	"context"
	"time"

	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/pod/record"
)

// logPatience is how long the end of a container waits for the last of its output to be in its log. A process outside
// the container that holds the pipe open must not keep the container from ending.
const logPatience = 2 * time.Second

// watchKeeper follows the keeper until the manager is closed.
func (m *Manager) watchKeeper() {
	for m.ctx.Err() == nil {
		err := m.cfg.Keeper.Watch(m.ctx, m.keeperEvent)
		if m.ctx.Err() != nil {
			return
		}
		m.log.Warn("the keeper's events stopped; following them again", "error", err)
		select {
		case <-m.ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// keeperEvent must not block: it is called for all containers in turn.
func (m *Manager) keeperEvent(e keeper.Event) {
	if e.Gone || e.Status.State != keeper.StateExited {
		return
	}
	switch s, c := m.index.byID(e.Status.ID); {
	case c != nil:
		m.background.Go(func() { m.containerExited(c, e.Status) })
	case s != nil:
		m.background.Go(func() { m.reaperExited(s, e.Status) })
	}
}

// containerExited takes over how a container ended. The event comes twice, before and after the log is complete.
func (m *Manager) containerExited(c *container, st keeper.Status) {
	if !st.LogDone {
		select {
		case <-c.exited: // the second event did it
			return
		case <-m.ctx.Done():
			return
		case <-time.After(logPatience):
			m.log.Warn("a container has ended, but something still holds its output open", "container", record.ShortID(c.id))
		}
	}
	// A start that is on its way records its own end first.
	release, err := c.hold(m.ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	m.adoptExit(m.ctx, c, st)
}

// adoptExit records the end of a container that the keeper reports and lets the keeper forget it. The caller holds c.op.
func (m *Manager) adoptExit(ctx context.Context, c *container, st keeper.Status) {
	r := c.Record()
	if r.Phase == record.ContainerStarting || r.Phase == record.ContainerRunning {
		m.finish(c, func(r *record.Container) {
			if r.StartedAt.IsZero() {
				r.StartedAt = st.StartedAt
			}
			r.FinishedAt = st.FinishedAt
			r.ExitCode = int32(st.ExitCode)
			r.Reason, r.Message = reasonOf(st)
		})
	}
	if err := m.cfg.Keeper.Delete(ctx, c.id); err != nil {
		m.log.Warn("the keeper did not forget a container that has ended", "container", record.ShortID(c.id), "error", err)
	}
	if c.Record().Phase == record.ContainerExited {
		if err := m.unmountContainer(c); err != nil {
			m.log.Warn("unmount what a container that has ended had mounted", "container", record.ShortID(c.id), "error", err)
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
func (m *Manager) finish(c *container, change func(*record.Container)) {
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
		m.log.Error("record the end of a container", "container_id", c.id, "error", err)
	}
	m.logs.release(c.id)
	m.tell(c.sandbox, c.id, model.EventStopped) // before whoever waits for the end goes on and tells of the pod's
	c.ended()
}

// reaperExited marks a pod whose init is gone: the kernel has ended all in its PID namespace.
func (m *Manager) reaperExited(s *sandbox, st keeper.Status) {
	release, err := s.hold(m.ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	// It may have been of an earlier life of the pod.
	if r := s.Record(); r.Phase != record.SandboxReady || r.ReaperPID != st.PID {
		return
	}
	if err := m.breakSandbox(s, lostInit); err != nil {
		m.log.Error("record that a pod is broken", "pod", record.ShortID(s.id), "error", err)
		return
	}
	m.tell(s, s.id, model.EventStopped)
}
