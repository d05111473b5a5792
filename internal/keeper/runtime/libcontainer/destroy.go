package libcontainer

import (
	"context"
	"errors"
	"maps"
	"os"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/hook"
	"berth/internal/keeper/runtime"
)

// Destroy removes cgroups and state.
func (e *Engine) Destroy(ctx context.Context, c runtime.Container) error {
	if err := c.Guard().Lock(ctx); err != nil {
		return err
	}
	defer c.Guard().Unlock()
	rec, dir := c.Record(), e.dir.State(c.ID())
	lib, _ := (*c.Loaded()).(*libcontainer.Container)
	if lib == nil {
		var err error
		lib, err = libcontainer.Load(e.dir.States(), c.ID())
		if errors.Is(err, libcontainer.ErrNotExist) {
			// It was cut off before libcontainer wrote its state down.
			if err := cgroupdir.DestroySpec(ctx, c.ID(), rec.CgroupsPath, rec.Systemd); err != nil {
				return err
			}
			return os.RemoveAll(dir)
		}
		if err != nil { // the file is spoilt, and the record says what there is
			c.Log().Error("libcontainer's state is unreadable; its cgroups are removed without it", "error", err)
			recorded := maps.Clone(rec.Cgroups)
			err := errors.Join(
				cgroupdir.DestroySpec(ctx, c.ID(), rec.CgroupsPath, rec.Systemd), cgroupdir.KillAll(recorded),
				cgroupdir.RemoveNested(ctx, recorded), cgroups.RemovePaths(recorded),
			)
			if err != nil {
				return err
			}
			return os.RemoveAll(dir)
		}
	}
	// Whatever comes of it, the state that the next call needs is the one on the disk.
	*c.Loaded() = nil
	return e.destroy(c, lib)
}

// destroy has libcontainer remove a container, by a view of it that is good for nothing else afterwards.
func (e *Engine) destroy(c runtime.Container, lib *libcontainer.Container) error {
	hook.AfterRemoval(lib.Config().Hooks, lib.ID(), func(path string, err error) {
		c.Log().Warn("poststop hook failed", "hook", path, "error", err)
	})
	return lib.Destroy()
}

// Abort kills and removes what there is of a container.
func (e *Engine) Abort(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	return errors.Join(cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd), e.RemoveState(ctx, c, e.Destroy))
}

// RemoveState kills and removes a container by its state directory, of which there may be one and no record. destroy is
// the Destroy of its engine.
func (e *Engine) RemoveState(
	ctx context.Context, c runtime.Container, destroy func(context.Context, runtime.Container) error,
) error {
	lib, err := libcontainer.Load(e.dir.States(), c.ID())
	var paths map[string]string
	if err == nil {
		st, err := lib.State()
		if err != nil {
			return err
		}
		paths = st.CgroupPaths
		if err := cgroupdir.KillAll(paths); err != nil {
			return err
		}
		cgroupdir.ThawKilled(paths)
		if err := lib.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
			c.Log().Warn("kill the container's init process", "error", err)
		}
	}
	for {
		left := cgroupdir.RemoveNested(ctx, paths)
		err := destroy(ctx, c)
		if err == nil {
			return nil
		}
		if !errors.Is(err, libcontainer.ErrRunning) && !errors.Is(left, unix.EBUSY) {
			return errors.Join(err, left)
		}
		select { // the processes that were killed are still there
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, left)
		}
	}
}
