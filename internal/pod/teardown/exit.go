package teardown

import (
	"context"
	"errors"
	"syscall"
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
//
// Unless the cause is a *keeper.StartError, the program may have begun: the client has gone when the keeper was done,
// for example. The record says so before the keeper forgets the container. Otherwise a berthd that is started after a
// kill at this moment would find a start that nobody knows of, and take the container for one that can be started.
func (td *Teardown) StartFailed(ctx context.Context, c *index.Container, cause error) {
	clean, cancel := undo.Context(ctx)
	defer cancel()
	code := int32(128)
	var start *keeper.StartError
	if refused := errors.As(cause, &start); refused && start.ExitCode != 0 {
		code = int32(start.ExitCode)
	} else if !refused {
		if err := c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerRunning }); err != nil {
			td.Log.Error("record that a container may have run", "container_id", c.ID(), "error", err)
		}
	}
	if err := td.endStart(clean, c); err != nil {
		td.Log.Error("remove what is left of a failed start", "container_id", c.ID(), "error", err)
	}
	td.Finish(c, func(r *record.Container) {
		r.ExitCode = code
		r.Reason = model.ReasonStartError
		r.Message = cause.Error()
		r.FinishedAt = time.Now()
	})
}

var errHungStart = errors.New("the start took too long and was ended: the program may have begun meanwhile")

// EndHungStart ends a start that an earlier berthd has asked for and that the keeper has not finished, and records that
// the container has exited: the keeper can finish the start before it ends the container, and then the program has run.
// For a berthd that is started after a kill in between, the record says so before the keeper is asked. The caller holds
// the container's lock.
func (td *Teardown) EndHungStart(ctx context.Context, c *index.Container) error {
	if err := c.Update(record.Save, func(r *record.Container) { r.StartEnded = true }); err != nil {
		return err
	}
	if err := td.Keeper.Delete(ctx, c.ID()); err != nil {
		return err
	}
	td.Finish(c, func(r *record.Container) {
		r.ExitCode = 128
		r.Reason = model.ReasonStartError
		r.Message = errHungStart.Error()
	})
	return nil
}

// endStart ends what the keeper has of a container whose start has failed, and has the keeper forget it. If the record
// could not be written, only the keeper can tell after a restart of berthd that the program has run: it keeps the
// container, whose processes are killed.
func (td *Teardown) endStart(ctx context.Context, c *index.Container) error {
	if !c.Saved() && td.Keeper.Signal(ctx, c.ID(), syscall.SIGKILL, true) == nil {
		return nil
	}
	return td.Keeper.Delete(ctx, c.ID())
}

// AdoptRunning records what the keeper says of a container that runs. The caller holds the container's lock.
func (td *Teardown) AdoptRunning(c *index.Container, st keeper.Status) error {
	r := c.Record()
	if r.Phase == record.ContainerRunning && r.PID == st.PID && r.StartedAt.Equal(st.StartedAt) && r.Setup == st.Setup {
		return nil
	}
	err := c.Update(record.Save, func(r *record.Container) {
		r.Phase = record.ContainerRunning
		r.PID = st.PID
		r.StartedAt = st.StartedAt
		r.Setup = st.Setup
		if r.Restored != nil && r.Restored.At.IsZero() {
			restored := *r.Restored
			restored.At = st.StartedAt
			r.Restored = &restored
		}
	})
	if err == nil && r.Phase == record.ContainerStarting {
		td.Events.Tell(c.Sandbox, c.ID(), model.EventStarted)
	}
	return err
}
