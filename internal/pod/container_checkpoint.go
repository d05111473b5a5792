package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/checkpoint"
	"berth/internal/disk"
	keeper "berth/internal/keeper/client"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/rootfs"
)

// checkpointDir is where a checkpoint of a container is put together, in the container's directory.
const checkpointDir = "checkpoint"

// checkpointTimeout is that of a checkpoint whose caller gives none.
const checkpointTimeout = 10 * time.Minute

// checkpoints makes and reads checkpoints of containers.
type checkpoints struct {
	containers *record.Containers
	cfg        *Config
	log        *slog.Logger
}

// CheckpointContainer writes a running container down, with its memory and what it has written to its root file system, as
// an archive at an absolute path of the node. The container stands still meanwhile and then goes on. Nothing is at the path
// until the archive is whole. Timeout 0 is ten minutes.
func (m *Manager) CheckpointContainer(ctx context.Context, id, location string, timeout time.Duration) error {
	c, err := m.index.container(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("checkpoint of container %s", record.ShortID(c.id))
	if err := checkLocation(location); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if timeout <= 0 {
		timeout = checkpointTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	release, err := c.op.Exclusive(ctx, what)
	if err != nil {
		return err
	}
	defer release()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	c.setCut(cut)
	defer c.setCut(nil)
	r, pod := c.Record(), c.sandbox.Record()
	switch {
	case r.Phase != record.ContainerRunning:
		return fmt.Errorf("%s: it is %s, not running: %w", what, r.Phase, errdefs.ErrFailedPrecondition)
	case pod.Config.UserNamespace() != nil:
		return fmt.Errorf("%s: its pod has a user namespace, and CRIU does not join one: %w", what, errdefs.ErrFailedPrecondition)
	}
	// The intent: the archive is written beside its place, and that may be on another file system than all else here.
	temp := filepath.Join(filepath.Dir(location), ".berth-checkpoint-"+record.NewID()[:16])
	if err := c.Update(record.Save, func(r *record.Container) { r.CheckpointTemp = temp }); err != nil {
		return err
	}
	err = m.checkpoints.archive(ctx, c, &r, temp)
	if err == nil {
		if err = os.Rename(temp, location); err != nil {
			err = fmt.Errorf("location: %w", err)
		}
	}
	if cerr := m.checkpoints.cleanCheckpoint(c); cerr != nil {
		m.log.Error("remove what is left of a checkpoint", "container", record.ShortID(c.id), "error", cerr)
	}
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errCut) {
			err = cause
		}
		return fmt.Errorf("%s: %w", what, disk.Exhausted(err))
	}
	return nil
}

// errCut ends a checkpoint whose container is to end: a stop does not wait for it.
var errCut = fmt.Errorf("the container is being stopped: %w", errdefs.ErrFailedPrecondition)

func (c *container) setCut(cut context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
}

// cutCheckpoint ends a checkpoint that is under way.
func (c *container) cutCheckpoint() {
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	if cut != nil {
		cut(errCut)
	}
}

func checkLocation(location string) error {
	if !filepath.IsAbs(location) {
		return fmt.Errorf("location %q is not an absolute path: %w", location, errdefs.ErrInvalidArgument)
	}
	if st, err := os.Stat(filepath.Dir(location)); err != nil || !st.IsDir() {
		return fmt.Errorf("location %s: there is no such directory: %w", location, errdefs.ErrInvalidArgument)
	}
	st, err := os.Lstat(location)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("location: %w: %w", err, errdefs.ErrInvalidArgument)
	case !st.Mode().IsRegular():
		return fmt.Errorf("location %s is there and no regular file: %w", location, errdefs.ErrInvalidArgument)
	}
	return nil
}

// archive puts a checkpoint together and writes its archive to a file.
func (k *checkpoints) archive(ctx context.Context, c *container, r *record.Container, file string) error {
	dir := filepath.Join(k.containers.Path(c.id), checkpointDir)
	begin := time.Now()
	deadline, _ := ctx.Deadline()
	goOn, err := k.cfg.Keeper.Checkpoint(ctx, &keeper.CheckpointRequest{
		ID: c.id, Work: dir, Images: filepath.Join(dir, checkpoint.ImagesDir), Timeout: time.Until(deadline), CRIU: k.cfg.CRIU,
	})
	if err != nil {
		return err
	}
	// What is on disk has to be what the processes have in mind, so they stand still until it is copied.
	deleted, err := k.copyFiles(ctx, c, r, dir)
	end, cancel := steps.Undoing(ctx)
	defer cancel()
	if err = errors.Join(err, goOn(end)); err != nil {
		return err
	}
	k.log.Info("a container was written down", "container", record.ShortID(c.id), "stood_still", time.Since(begin))
	if err := k.describe(c, r, dir, deleted); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("location: %w", err)
	}
	return errors.Join(checkpoint.Write(ctx, f, dir), f.Close())
}

func (k *checkpoints) copyFiles(ctx context.Context, c *container, r *record.Container, dir string) (deleted []string, err error) {
	f, err := os.OpenFile(filepath.Join(dir, checkpoint.DiffFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	deleted, err = rootfs.WriteDiff(ctx, f, k.containers.Path(c.id))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if r.LogPath == "" {
		return deleted, nil
	}
	return deleted, copyFile(r.LogPath, filepath.Join(dir, checkpoint.LogFile), 0o600)
}

// describe writes who the container is.
func (k *checkpoints) describe(c *container, r *record.Container, dir string, deleted []string) error {
	spec, err := c.loadSpec()
	if err != nil {
		return err
	}
	config := &checkpoint.Config{
		ID: c.id, Name: r.Config.Metadata.Name,
		RootfsImage: r.Config.Image.Image, RootfsImageName: r.Config.Image.Image, RootfsImageRef: r.ImageRef,
		OCIRuntime: "runc", CreatedTime: r.CreatedAt, CheckpointedAt: time.Now(),
	}
	if r.Restored != nil {
		config.Restored, config.RestoredAt = true, r.Restored.At
		config.RootfsImage, config.RootfsImageName = r.Restored.Image, r.Restored.Image
	}
	return checkpoint.WriteMetadata(dir, config, spec, deleted)
}

// cleanCheckpoint removes what a checkpoint leaves beside its archive. It is idempotent.
func (k *checkpoints) cleanCheckpoint(c *container) error {
	r := c.Record()
	if r.CheckpointTemp == "" {
		return nil
	}
	err := os.RemoveAll(filepath.Join(k.containers.Path(c.id), checkpointDir))
	if rerr := os.Remove(r.CheckpointTemp); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return err
	}
	return c.Update(record.Save, func(r *record.Container) { r.CheckpointTemp = "" })
}
