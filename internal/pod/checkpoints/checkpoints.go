// Package checkpoints makes checkpoints of containers, and restores containers from checkpoints. It owns the files that
// are on disk meanwhile: the parts of an archive that is being written, and a checkpoint that is unpacked until its
// container starts. Package checkpoint has the format of the archive.
package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
	"berth/internal/image"
	"berth/internal/jail"
	keeper "berth/internal/keeper/client"
	"berth/internal/liblog"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/sparse"
	"berth/internal/undo"
)

// Checkpointer makes and reads checkpoints of containers. The caller of its methods holds the container's lock.
type Checkpointer struct {
	Containers *record.Containers
	Keeper     Keeper
	Images     Images
	Jail       *jail.Jail // in which archives are read
	Settings   func() Settings
	Log        *slog.Logger

	mu      sync.Mutex
	outputs map[string]int // see Hold
}

// Settings are those that can be changed at any time.
type Settings struct {
	CRIU string // the program; empty: the one in PATH
	// RestoreImages says that images which are checkpoints are restored, and not archives alone.
	RestoreImages bool
	MaxBytes      uint64 // to which an archive is unpacked
}

// Keeper is what a Checkpointer asks of the keeper.
type Keeper interface {
	// Freeze lets a container stand still for the Checkpoint whose request has the nonce.
	Freeze(ctx context.Context, id string, timeout time.Duration) (nonce string, thaw func(context.Context) error,
		err error)
	// Checkpoint writes the processes of a container down, which stand still until thaw is called.
	Checkpoint(context.Context, *keeper.CheckpointRequest) (thaw func(context.Context) error, err error)
}

// Images is what a Checkpointer asks of the image store.
type Images interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	AddReference(imageID, holder string) (*image.Layers, error)
	UnpackTar(ctx context.Context, dir string, r io.Reader) error
}

// checkpointDir is where a checkpoint of a container is put together, in the container's directory.
const checkpointDir = "checkpoint"

// CheckLocation refuses a path at which no archive can be put: it is not absolute, has no directory, or is there and is
// no regular file. The error is errdefs.ErrInvalidArgument.
func CheckLocation(location string) error {
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
		return fmt.Errorf("location %s exists and is not a regular file: %w", location, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Archive puts a checkpoint of a container together and writes its archive to a file, which is not there yet. The
// container stands still meanwhile, but for the time in which the archive is written. loadSpec reads its specification.
func (k *Checkpointer) Archive(ctx context.Context, c *record.ContainerEntry, r *record.Container, file string,
	loadSpec func() (*specs.Spec, error)) error {
	dir := filepath.Join(k.Containers.Path(c.ID()), checkpointDir)
	begin := time.Now()
	deadline, _ := ctx.Deadline()
	thaw, err := k.Keeper.Checkpoint(ctx, &keeper.CheckpointRequest{
		ID: c.ID(), Work: dir, Images: filepath.Join(dir, checkpoint.ImagesDir), Timeout: time.Until(deadline),
		CRIU: k.Settings().CRIU,
	})
	if err != nil {
		return err
	}
	// What is on disk has to be what the processes have in mind, so they stand still until it is copied.
	deleted, err := k.copyFiles(ctx, c, r, dir)
	end, cancel := undo.Context(ctx)
	defer cancel()
	if err = errors.Join(err, thaw(end)); err != nil {
		return err
	}
	k.Log.Info("a container was written down", "container_id", c.ID(),
		"stood_still_ms", liblog.Milliseconds(time.Since(begin)))
	spec, err := loadSpec()
	if err != nil {
		return err
	}
	if err := describe(r, spec, dir, deleted); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("location: %w", err)
	}
	return errors.Join(checkpoint.Write(ctx, f, dir), f.Close())
}

// copyFiles copies the files that the container has written to its root file system, and its log. deleted are the paths
// that it has removed there.
func (k *Checkpointer) copyFiles(ctx context.Context, c *record.ContainerEntry, r *record.Container,
	dir string) (deleted []string, err error) {
	f, err := os.OpenFile(filepath.Join(dir, checkpoint.DiffFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	deleted, err = rootfs.WriteDiff(ctx, f, k.Containers.Path(c.ID()))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if r.LogPath == "" {
		return deleted, nil
	}
	err = copyFile(ctx, r.LogPath, filepath.Join(dir, checkpoint.LogFile), 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // a kubelet rotates the log: it moves the file, and then has the keeper open another
	}
	return deleted, err
}

// describe writes who the container is.
func describe(r *record.Container, spec *specs.Spec, dir string, deleted []string) error {
	config := &checkpoint.Config{
		ID: r.ID, Name: r.Config.Metadata.Name,
		RootfsImage: r.Config.Image.Image, RootfsImageName: r.Config.Image.Image, RootfsImageRef: r.ImageRef,
		OCIRuntime: "runc", CreatedTime: r.CreatedAt, CheckpointedAt: time.Now(),
	}
	if r.Restored != nil {
		config.Restored, config.RestoredAt = true, r.Restored.At
		config.RootfsImage, config.RootfsImageName = r.Restored.Image, r.Restored.Image
	}
	return checkpoint.WriteMetadata(dir, config, spec, deleted)
}

// Begin records where a checkpoint of a container is being written: see CheckpointTemp in the record. What is left of
// an earlier one is removed before, since nothing would name it any more.
func (k *Checkpointer) Begin(c *record.ContainerEntry, temp string) error {
	return k.begin(c, temp, "", "")
}

// begin is Begin for a container, and for one of a pod: see CheckpointPod and CheckpointMark.
func (k *Checkpointer) begin(c *record.ContainerEntry, temp, pod, mark string) error {
	if err := k.Clean(c); err != nil {
		return fmt.Errorf("remove what is left of an earlier checkpoint: %w", err)
	}
	return c.Update(record.Save, func(r *record.Container) {
		r.CheckpointTemp, r.CheckpointPod, r.CheckpointMark = temp, pod, mark
	})
}

// forget takes out of a record what begin has written.
func forget(r *record.Container) { r.CheckpointTemp, r.CheckpointPod, r.CheckpointMark = "", "", "" }

// Clean removes what a checkpoint leaves beside its archive, or has left of the checkpoint of a pod. It is idempotent.
// The files may be on a file system that does not answer.
func (k *Checkpointer) Clean(c *record.ContainerEntry) error {
	r := c.Record()
	if r.CheckpointTemp == "" {
		return nil
	}
	if err := k.RemoveParts(&r); err != nil {
		return err
	}
	return c.Update(record.Save, forget)
}

// RemoveParts removes the files that a container's record names, as Clean does, for a container that is gone itself.
func (k *Checkpointer) RemoveParts(r *record.Container) error {
	err := os.RemoveAll(filepath.Join(k.Containers.Path(r.ID), checkpointDir))
	if r.CheckpointPod == "" {
		return errors.Join(err, os.RemoveAll(r.CheckpointTemp))
	}
	return errors.Join(err, removePod(r.CheckpointPod, r.CheckpointMark))
}

// removePod removes an unfinished checkpoint of a pod, whose description is or would be the file. Without the mark, the
// checkpoint is finished and the client's, or another container's record has had it removed: the record that names it
// may be an older version, as when the newest one is damaged. A record of an earlier version of Berth names no mark, so
// nothing is removed. The mark goes last.
func removePod(file, mark string) error {
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if rerr := os.Remove(file); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if number, ok := strings.CutPrefix(e.Name(), "container-"); ok && e.IsDir() {
			if i, nerr := strconv.Atoi(number); nerr == nil && checkpoint.ContainerDir(i) == e.Name() {
				err = errors.Join(err, os.RemoveAll(name))
			}
		}
	}
	if err != nil {
		return err
	}
	return os.Remove(mark)
}

// openRegular opens a regular file. What leads elsewhere or waits for a writer is refused: containers write to the
// places.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	return f, nil
}

// copyFile copies a regular file.
func copyFile(ctx context.Context, from, to string, mode fs.FileMode) error {
	in, err := openRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return writeFile(to, mode, func(out *os.File) error {
		_, err := sparse.Copy(ctx, out, in)
		return err
	})
}

// writeFile has a regular file written, and follows no link to another.
func writeFile(to string, mode fs.FileMode, write func(*os.File) error) error {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	return errors.Join(write(out), out.Close())
}
