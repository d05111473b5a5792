package pod

import (
	"context"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// logPatience is how long the end of a container waits for the last of its output to be in its log. A process outside
// the container that holds the pipe open must not keep the container from ending.
const logPatience = 2 * time.Second

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
	reason := c.Record().Reason
	td.metrics.Exit(reason, reason == model.ReasonOOMKilled)
	td.logs.Release(c.ID())
	// The event goes out before Ended wakes the goroutines that wait for the end: one of them sends the pod's own event,
	// which has to come after it.
	td.events.Tell(c.Sandbox, c.ID(), model.EventStopped)
	c.Ended()
}
