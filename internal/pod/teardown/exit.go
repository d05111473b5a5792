package teardown

import (
	"context"
	"errors"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// AdoptExit records the end of a container that the keeper reports and lets the keeper forget it, unless the record
// could not be written: then only the keeper knows the exit code after a restart of berthd, and the removal of the
// container releases what it still has. The caller holds the container's lock.
func (td *Teardown) AdoptExit(ctx context.Context, c *index.Container, st keeper.Status) {
	r := c.Record()
	if r.Phase == record.ContainerCreated {
		// A start that was cut off, and that the keeper has read late: its program has run, and must not be run again.
		if err := c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerStarting }); err != nil {
			td.Log.Error("record the start of a container that has ended", "container_id", c.ID(), "error", err)
		}
		r = c.Record()
	}
	if r.Phase == record.ContainerStarting || r.Phase == record.ContainerRunning {
		td.Finish(c, func(r *record.Container) {
			if r.StartedAt.IsZero() {
				r.StartedAt = st.StartedAt
			}
			r.FinishedAt = st.FinishedAt
			r.ExitCode = int32(st.ExitCode)
			r.Reason, r.Message = reasonOf(st)
		})
	}
	if !c.Saved() {
		return
	}
	if err := td.Keeper.Delete(ctx, c.ID()); err != nil {
		td.Log.Warn("the keeper did not forget a container that has ended", "container_id", c.ID(), "error", err)
	}
	if c.Record().Phase == record.ContainerExited {
		if err := td.Storage.UnmountContainer(c.ContainerEntry, new(c.Sandbox.Record())); err != nil {
			td.Log.Warn("unmount what a container that has ended had mounted", "container_id", c.ID(), "error", err)
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

// Finish records that a container has exited, with the fields that change sets, and wakes those that wait for its end.
func (td *Teardown) Finish(c *index.Container, change func(*record.Container)) {
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
		td.Log.Error("record the end of a container", "container_id", c.ID(), "error", err)
	}
	reason := c.Record().Reason
	td.Metrics.Exit(reason, reason == model.ReasonOOMKilled)
	td.Logs.Release(c.ID())
	// The event goes out before Ended wakes the goroutines that wait for the end: one of them sends the pod's own event,
	// which has to come after it.
	td.Events.Tell(c.Sandbox, c.ID(), model.EventStopped)
	c.Ended()
	td.Plugins.Ended(c)
}

// StartFailed undoes a failed start: the keeper removes what it has of the container, and the record says that the
// container has exited, with the exit code that a shell would give. The rest goes with RemoveContainer. The caller
// holds the container's lock.
func (td *Teardown) StartFailed(ctx context.Context, c *index.Container, cause error) {
	clean, cancel := undo.Context(ctx)
	defer cancel()
	if err := td.Keeper.Delete(clean, c.ID()); err != nil {
		td.Log.Error("remove what is left of a failed start", "container_id", c.ID(), "error", err)
	}
	code := int32(128)
	var start *keeper.StartError
	if errors.As(cause, &start) && start.ExitCode != 0 {
		code = int32(start.ExitCode)
	}
	td.Finish(c, func(r *record.Container) {
		r.ExitCode = code
		r.Reason = model.ReasonStartError
		r.Message = cause.Error()
		r.FinishedAt = time.Now()
	})
}
