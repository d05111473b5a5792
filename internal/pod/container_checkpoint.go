package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// checkpointTimeout is that of a checkpoint whose caller gives none.
const checkpointTimeout = 10 * time.Minute

// CheckpointContainer writes a checkpoint of a running container, with its memory and its changes to the root file
// system, as an archive at an absolute path of the node. The container is frozen meanwhile, and runs again afterwards.
// The path does not exist until the archive is complete. Timeout 0 means ten minutes.
func (m *Manager) CheckpointContainer(ctx context.Context, id, location string, timeout time.Duration) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("checkpoint of container %s", record.ShortID(c.ID()))
	if err := checkpoints.CheckLocation(location); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if timeout <= 0 {
		timeout = checkpointTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	release, err := m.lockContainer(ctx, c, "checkpoint")
	if err != nil {
		return err
	}
	defer release()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	c.SetCut(cut)
	defer c.SetCut(nil)
	r, pod := c.Record(), c.Sandbox.Record()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case r.Phase != record.ContainerRunning:
		return fmt.Errorf("%s: it is %s, not running: %w", what, r.Phase, errdefs.ErrFailedPrecondition)
	case pod.Config.UserNamespace() != nil:
		return fmt.Errorf("%s: its pod has a user namespace, and CRIU does not join one: %w",
			what, errdefs.ErrFailedPrecondition)
	}
	// The intent: the archive is written beside its place, and that may be on another file system than all else here.
	temp := filepath.Join(filepath.Dir(location), ".berth-checkpoint-"+record.NewID()[:16])
	if err := m.checkpoints.Begin(c.ContainerEntry, temp); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	err = m.checkpoints.Archive(ctx, c.ContainerEntry, &r, temp, c.LoadSpec)
	if err == nil {
		if err = os.Rename(temp, location); err != nil {
			err = fmt.Errorf("location: %w", err)
		}
	}
	if cerr := m.checkpoints.Clean(c.ContainerEntry); cerr != nil {
		m.log.Error("remove what is left of a checkpoint", "container_id", c.ID(), "error", cerr)
	}
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, index.ErrCut) {
			err = cause
		}
		return fmt.Errorf("%s: %w", what, disk.Exhausted(err))
	}
	return nil
}
