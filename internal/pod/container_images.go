package pod

import (
	"context"
	"errors"
	"os"
	"slices"

	"berth/internal/model"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/quota"
	"berth/internal/volume"
)

// storage is the file systems of containers: their roots, volumes and disk quotas. Its methods may be called concurrently.
type storage struct {
	dirs    *layout.Dirs
	index   *index
	images  Images
	rootfs  Rootfs
	quotas  *quota.Ledger
	volumes *volume.Store
}

// mountImages mounts the images that are volumes of a container, read-only, and returns where, by container path. Their
// layers are held with those of the container's own image.
func (st *storage) mountImages(ctx context.Context, c *container, pod *record.Sandbox) (map[string]string, error) {
	var at map[string]string
	for i, mount := range c.Record().Config.Mounts {
		if mount.Image == nil {
			continue
		}
		img, err := st.images.Get(ctx, mount.Image.Image)
		if err != nil {
			return nil, (mountField(i) + ".image").Wrong(err)
		}
		layers, err := st.images.Hold(img.ID, c.id)
		if err != nil {
			return nil, (mountField(i) + ".image").Wrong(err)
		}
		err = c.Update(record.Draft, func(r *record.Container) {
			r.VolumeImages = append(slices.Clip(r.VolumeImages), img.ID)
		})
		if err != nil {
			return nil, err
		}
		o := st.rootfsOptions(pod, c.Record().Label, st.dirs.Image(c.id, i), layers)
		o.Readonly = true
		path, err := st.rootfs.Mount(ctx, o)
		if err != nil {
			return nil, (mountField(i) + ".image").Wrong(err)
		}
		if at == nil {
			at = map[string]string{}
		}
		at[mount.ContainerPath] = path
	}
	return at, nil
}

// unmountImages is idempotent.
func (st *storage) unmountImages(id string, cfg *model.ContainerConfig) error {
	var errs []error
	for i, mount := range cfg.Mounts {
		if mount.Image != nil {
			errs = append(errs, st.rootfs.Unmount(st.dirs.Image(id, i)))
		}
	}
	return errors.Join(errs...)
}

// unmountContainer unmounts all file systems of a container that are its own. It is idempotent.
func (st *storage) unmountContainer(c *container) error {
	pod := c.sandbox.Record()
	return errors.Join(st.unmountImages(c.id, c.Record().Config), st.rootfs.Unmount(st.dirs.Plain(c.id)), st.unmountRoot(&pod, c.id))
}

// unmountRoot unmounts the root file system of a container. It is idempotent.
func (st *storage) unmountRoot(pod *record.Sandbox, id string) error {
	at := st.dirs.Rootfs(pod, id)
	if err := st.rootfs.Unmount(st.dirs.Container(id), at); err != nil {
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
