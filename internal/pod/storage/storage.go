// Package storage owns the file systems of containers: their root file systems, the images and volumes that are mounted
// in them, and their disk quotas. All that a container uses of these is released by the container's ID.
package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/hostpath"
	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/ocispec"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/quota"
	"berth/internal/rootfs"
	"berth/internal/volume"
)

// Rootfs mounts root file systems.
type Rootfs interface {
	// Mount mounts a root file system and returns where.
	Mount(context.Context, rootfs.Options) (string, error)
	// Unmount unmounts what Mount has mounted for a directory, there and at further mount points. It is idempotent.
	Unmount(dir string, at ...string) error
	// Mounts are the mount points at and below directories.
	Mounts(roots ...string) ([]string, error)
}

// Overlays is the Rootfs of a node, which package rootfs mounts.
type Overlays struct{}

// Mount is rootfs.Mount, in a child if the layers are of a file system that may not answer.
func (Overlays) Mount(ctx context.Context, o rootfs.Options) (string, error) {
	if o.Remote {
		return hostpath.MountRoot(ctx, o)
	}
	return rootfs.Mount(ctx, o)
}

// Unmount is rootfs.Unmount.
func (Overlays) Unmount(dir string, at ...string) error { return rootfs.Unmount(dir, at...) }

// Mounts is rootfs.Mounts.
func (Overlays) Mounts(roots ...string) ([]string, error) { return rootfs.Mounts(roots...) }

// Quotas limits the disk that containers take: a quota.Ledger.
type Quotas interface {
	Take(ctx context.Context, holder string, w quota.Want) (*quota.Grant, error)
	Mark(ctx context.Context, id uint32, dirs ...string) error
	Resize(holder, dir string, bytes uint64) (found bool, err error)
	Held(holder string) []*quota.Grant
	Return(holder string, dirs ...string)
	Release(holder string)
	Reconcile(lives func(holder string) bool)
	Close()
}

// Volumes keeps named volumes, and fills those that images declare.
type Volumes interface {
	Path(name string) string
	Use(ctx context.Context, name, user string, f volume.Fill) (string, error)
	AddUser(name, user string) error
	Release(user string)
	// Create makes an empty volume, or is errdefs.ErrAlreadyExists.
	Create(ctx context.Context, name string) error
	Remove(ctx context.Context, name string) error
	Get(name string) (*model.Volume, error)
	List() []*model.Volume
	// Populate makes dir, which must not exist, with what f says.
	Populate(ctx context.Context, dir string, f volume.Fill) error
}

// NodeVolumes are the Volumes of a node.
type NodeVolumes struct{ *volume.Store }

// Populate is volume.Populate.
func (NodeVolumes) Populate(ctx context.Context, dir string, f volume.Fill) error {
	return volume.Populate(ctx, dir, f)
}

// Images is what holds the layers of images.
type Images interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	AddReference(imageID, holder string) (*image.Layers, error)
	Release(holder string)
}

// Store makes, mounts and removes the file systems of containers. Its methods may be called concurrently; those that
// take a container need its lock.
type Store struct {
	Dirs    *layout.Dirs
	Images  Images
	Rootfs  Rootfs
	Quotas  Quotas
	Volumes Volumes
	// Names says in messages which containers IDs are of.
	Names func(ids []string) []string
}

// options are those of an image that is mounted for a container of a pod.
func (st *Store) options(ctx context.Context, pod *record.Sandbox, label ocispec.Label, dir string,
	layers *image.Layers) (rootfs.Options, error) {
	o := rootfs.Options{Dir: dir, Lowers: layers.Dirs, Label: label.Mount}
	if layers.Remote != nil {
		var err error
		if o.Lowers, err = layers.Remote(ctx); err != nil {
			return o, fmt.Errorf("layers of the image: %w", err)
		}
		o.Remote = true
	}
	if user := pod.Config.UserNamespace(); user != nil {
		o.UIDs, o.GIDs, o.UserNS = user.UIDs, user.GIDs, st.Dirs.Namespaces(pod.ID).Path(namespace.User)
	}
	return o, nil
}

// MountRoot mounts the root file system of a container, and returns where.
func (st *Store) MountRoot(ctx context.Context, pod *record.Sandbox, id string, label ocispec.Label,
	layers *image.Layers) (string, error) {
	o, err := st.options(ctx, pod, label, st.Dirs.Container(id), layers)
	if err != nil {
		return "", err
	}
	o.At = st.Dirs.Rootfs(pod, id)
	return st.Rootfs.Mount(ctx, o)
}

// MakeUpper makes the writable layer of a container, empty and with the look of the image's root directory, and leaves
// nothing mounted.
func (st *Store) MakeUpper(ctx context.Context, pod *record.Sandbox, id string, label ocispec.Label,
	layers *image.Layers) error {
	if _, err := st.MountRoot(ctx, pod, id, label, layers); err != nil {
		return err
	}
	return st.UnmountRoot(pod, id)
}

// RemountRoot makes sure that a container that was created and not started has its root file system: it is not among
// the mounted when the node was down since.
func (st *Store) RemountRoot(ctx context.Context, c *record.ContainerEntry, pod *record.Sandbox,
	mounted map[string]bool) error {
	r := c.Record()
	whole := mounted[st.Dirs.Rootfs(pod, c.ID())]
	for i, mount := range r.Config.Mounts {
		whole = whole && (mount.Image == nil || mounted[rootfs.Path(st.Dirs.Image(c.ID(), i))])
	}
	if whole {
		return nil
	}
	// A berthd that was killed may have mounted a part of it.
	if err := st.UnmountContainer(c, pod); err != nil {
		return err
	}
	layers, err := st.Images.AddReference(r.ImageID, c.ID())
	if err != nil {
		return err
	}
	if _, err = st.MountRoot(ctx, pod, c.ID(), r.Label, layers); err != nil {
		return err
	}
	if err := c.Update(record.Draft, func(r *record.Container) { r.VolumeImages = nil }); err != nil {
		return err
	}
	_, err = st.MountImages(ctx, c, pod)
	return err
}

// UnmountContainer unmounts all file systems of a container that are its own. It is idempotent.
func (st *Store) UnmountContainer(c *record.ContainerEntry, pod *record.Sandbox) error {
	return errors.Join(
		st.UnmountImages(c.ID(), c.Record().Config),
		st.Rootfs.Unmount(st.Dirs.Plain(c.ID())),
		st.UnmountRoot(pod, c.ID()),
	)
}

// UnmountRoot unmounts the root file system of a container. It is idempotent.
func (st *Store) UnmountRoot(pod *record.Sandbox, id string) error {
	at := st.Dirs.Rootfs(pod, id)
	if err := st.Rootfs.Unmount(st.Dirs.Container(id), at); err != nil {
		return err
	}
	if pod.Config.UserNamespace() == nil {
		return nil // it goes with the container's directory
	}
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// UnmountLost unmounts what a container had mounted of which there is no record: not even of its pod.
func (st *Store) UnmountLost(id string, points []string) error {
	err := st.UnmountBelow(st.Dirs.Container(id), points)
	for _, p := range points {
		if st.Dirs.IsRootfs(p, id) {
			err = errors.Join(err, st.UnmountBelow(p, points), os.Remove(p))
		}
	}
	return err
}

// UnmountBelow unmounts those of the given mount points that are at or in dir.
func (st *Store) UnmountBelow(dir string, points []string) error {
	var errs []error
	for _, p := range points {
		if strings.HasPrefix(p+"/", dir+"/") {
			errs = append(errs, st.Rootfs.Unmount(filepath.Dir(p), p))
		}
	}
	return errors.Join(errs...)
}

// Release gives back what a container holds: its images, its volumes and its disk quotas.
func (st *Store) Release(id string) {
	st.Images.Release(id)
	st.Volumes.Release(id)
	st.Quotas.Release(id)
}
