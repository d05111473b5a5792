package teardown

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// thawEvery is how long a killed container may take to end before it is taken for frozen, and how often it is thawed
// then.
const thawEvery = 500 * time.Millisecond

// Kill ends all processes of a container and waits until it has exited. A start that is under way ends first.
func (td *Teardown) Kill(ctx context.Context, c *index.Container) error {
	defer c.Stopping()()
	if c.Record().Phase == record.ContainerStarting {
		if err := td.EndStarting(ctx, c); err != nil {
			return err
		}
	}
	if c.Record().Phase != record.ContainerRunning {
		return nil
	}
	if err := td.Keeper.Signal(ctx, c.ID(), syscall.SIGKILL, true); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return fmt.Errorf("kill container %s: %w", record.ShortID(c.ID()), err)
	}
	if err := td.LetEnd(ctx, c); err != nil {
		td.Log.Debug("thaw a killed container", "container_id", c.ID(), "error", err)
	}
	thaw := time.NewTicker(thawEvery)
	defer thaw.Stop()
	for {
		select {
		case <-c.Exited():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("container %s was killed and has not ended: %w", record.ShortID(c.ID()), ctx.Err())
		// SIGKILL waits at a frozen cgroup of version 1. With the signal the keeper thaws those that the container has made
		// in its own, and something in it may have frozen another one meanwhile.
		case <-thaw.C:
			err := errors.Join(td.Keeper.Resume(ctx, c.ID()), td.Keeper.Signal(ctx, c.ID(), syscall.SIGKILL, true))
			if err != nil {
				td.Log.Debug("thaw a killed container", "container_id", c.ID(), "error", err)
			}
		}
	}
}

// EndStarting waits for the end of a start. One that an earlier berthd has asked for, and that recovery could not end,
// is ended: when this succeeds the container's program does not begin any more, and the record says that the container
// has exited. A program that runs is left to the caller, and the record says so.
func (td *Teardown) EndStarting(ctx context.Context, c *index.Container) error {
	release, err := c.Lock(ctx, "kill")
	if err != nil {
		return err
	}
	defer release()
	if c.Record().Phase != record.ContainerStarting {
		return nil
	}
	st, err := td.Keeper.Status(ctx, c.ID())
	switch {
	case errors.Is(err, errdefs.ErrNotFound):
		err = td.Keeper.Delete(ctx, c.ID())
	case err == nil && st.State == keeper.StateStarting:
		err = td.EndHungStart(ctx, c)
	case err == nil && st.State == keeper.StateExited:
		td.AdoptExit(ctx, c, *st)
	case err == nil:
		err = td.AdoptRunning(c, *st)
	}
	if err != nil {
		return fmt.Errorf("end the start of container %s: %w", record.ShortID(c.ID()), err)
	}
	return nil
}

// LetEnd lets a paused container take the signal that it was sent.
func (td *Teardown) LetEnd(ctx context.Context, c *index.Container) error {
	if !c.Record().Paused {
		return nil
	}
	err := td.Keeper.Resume(ctx, c.ID())
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrFailedPrecondition) {
		return fmt.Errorf("resume the paused container: %w", err)
	}
	return c.Update(record.Happened, func(r *record.Container) { r.Paused = false })
}

// Resume thaws a paused container, and records that. The caller holds the container's lock.
func (td *Teardown) Resume(ctx context.Context, c *index.Container) error {
	if err := td.Keeper.Resume(ctx, c.ID()); err != nil {
		return err
	}
	return c.Update(record.Save, func(r *record.Container) { r.Paused = false })
}

// RemoveContainer kills a container, if it is running, and removes it. The caller holds the pod's lock, shared or
// exclusive.
func (td *Teardown) RemoveContainer(ctx context.Context, c *index.Container) error {
	release, err := td.lockEnded(ctx, c)
	if err != nil {
		return err
	}
	defer release()
	if td.Index.GoneContainer(c) {
		return nil
	}
	td.Plugins.StopContainer(ctx, c)
	td.Plugins.Tell(ctx, nri.RemoveContainer, c.Sandbox, c)
	if err := c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerRemoving }); err != nil {
		return err
	}
	if err := td.DropContainer(ctx, c); err != nil {
		return fmt.Errorf("remove container %s: %w", record.ShortID(c.ID()), err)
	}
	td.Events.Tell(c.Sandbox, c.ID(), model.EventDeleted)
	return nil
}

// lockEnded waits for the operations on a container that is to be removed, kills it if it runs then, and returns with
// the container's lock. A container whose start came first is killed too, so that clients are told of its end before
// its removal.
func (td *Teardown) lockEnded(ctx context.Context, c *index.Container) (release func(), err error) {
	for {
		if c.Record().Phase == record.ContainerRunning {
			if err := td.Kill(ctx, c); err != nil {
				return nil, err
			}
		}
		if release, err = c.Lock(ctx, "remove"); err != nil {
			return nil, err
		}
		if c.Record().Phase != record.ContainerRunning {
			return release, nil
		}
		release()
	}
}

// DropContainer removes a container whose record says that it is being removed. If something fails, the container stays
// in the index, so that the next call or the next start of berthd finishes the removal. The caller holds the
// container's lock.
func (td *Teardown) DropContainer(ctx context.Context, c *index.Container) error {
	if err := td.ReleaseContainer(ctx, c); err != nil {
		return err
	}
	if err := td.Trash.Discard(td.Containers.Path(c.ID())); err != nil {
		return err
	}
	td.ForgetContainer(c)
	return nil
}

// ReleaseContainer releases everything that a container holds except its record. It is idempotent. The caller holds the
// container's lock.
func (td *Teardown) ReleaseContainer(ctx context.Context, c *index.Container) error {
	if err := td.Keeper.Delete(ctx, c.ID()); err != nil {
		return err
	}
	if err := td.Cgroups.RemoveContainer(ctx, c.Record().Cgroup); err != nil {
		return err
	}
	return td.Storage.UnmountContainer(c.ContainerEntry, new(c.Sandbox.Record()))
}

// ForgetContainer drops a container of which nothing but its directory is left.
func (td *Teardown) ForgetContainer(c *index.Container) {
	if err := td.Trash.Discard(td.Containers.Path(c.ID())); err != nil {
		td.Log.Error("remove a container's directory", "container_id", c.ID(), "error", err)
	}
	td.Storage.Release(c.ID())
	td.Devices.Free(c)
	td.Plugins.Forget(c.ID())
	c.Ended()
	td.Index.ForgetContainer(c)
	td.Sampler.Forget(c.ID())
	td.Logs.Release(c.ID())
}
