package storage

import (
	"context"
	"errors"
	"slices"

	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
)

// MountImages mounts the images that are volumes of a container, read-only, and returns where, by container path. Their
// layers are held with those of the container's own image.
func (st *Store) MountImages(ctx context.Context, c *record.ContainerEntry,
	pod *record.Sandbox) (map[string]ocispec.ImageMount, error) {
	var at map[string]ocispec.ImageMount
	for i, mount := range c.Record().Config.Mounts {
		if mount.Image == nil {
			continue
		}
		img, err := st.Images.Get(ctx, mount.Image.Image)
		if err != nil {
			return nil, imageVolumeError(i, err)
		}
		layers, err := st.Images.AddReference(img.ID, c.ID())
		if err != nil {
			return nil, imageVolumeError(i, err)
		}
		err = c.Update(record.Draft, func(r *record.Container) {
			r.VolumeImages = append(slices.Clip(r.VolumeImages), img.ID)
		})
		if err != nil {
			return nil, err
		}
		o, err := st.options(ctx, pod, c.Record().Label, st.Dirs.Image(c.ID(), i), layers)
		if err != nil {
			return nil, imageVolumeError(i, err)
		}
		o.Readonly = true
		path, err := st.Rootfs.Mount(ctx, o)
		if err != nil {
			return nil, imageVolumeError(i, err)
		}
		if at == nil {
			at = map[string]ocispec.ImageMount{}
		}
		at[mount.ContainerPath] = ocispec.ImageMount{Path: path, Remote: layers.Remote != nil}
	}
	return at, nil
}

func imageVolumeError(mount int, err error) error {
	return &model.ImageVolumeError{Err: (mountField(mount) + ".image").Wrong(err)}
}

// UnmountImages unmounts what MountImages has mounted. It is idempotent.
func (st *Store) UnmountImages(id string, cfg *model.ContainerConfig) error {
	var errs []error
	for i, mount := range cfg.Mounts {
		if mount.Image != nil {
			errs = append(errs, st.Rootfs.Unmount(st.Dirs.Image(id, i)))
		}
	}
	return errors.Join(errs...)
}
