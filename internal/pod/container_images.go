package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// imageDir is where the image of a container's mount is mounted, by the mount's place among all of them.
func (m *Manager) imageDir(id string, i int) string {
	return filepath.Join(m.containers.Path(id), "image-"+strconv.Itoa(i))
}

// mountImages mounts the images that are volumes of a container, read-only, and returns where, by container path. Their
// layers are held with those of the container's own image.
func (m *Manager) mountImages(ctx context.Context, c *container, pod *record.Sandbox) (map[string]string, error) {
	var at map[string]string
	for i, mount := range c.Record().Config.Mounts {
		if mount.Image == nil {
			continue
		}
		img, err := m.cfg.Images.Get(ctx, mount.Image.Image)
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image: %w", i, err)
		}
		layers, err := m.cfg.Images.Hold(img.ID, c.id)
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image: %w", i, err)
		}
		err = c.Update(record.Draft, func(r *record.Container) {
			r.VolumeImages = append(slices.Clip(r.VolumeImages), img.ID)
		})
		if err != nil {
			return nil, err
		}
		o := m.rootfsOptions(pod, c.Record().Label, m.imageDir(c.id, i), layers)
		o.Readonly = true
		path, err := m.cfg.Rootfs.Mount(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image: %w", i, err)
		}
		if at == nil {
			at = map[string]string{}
		}
		at[mount.ContainerPath] = path
	}
	return at, nil
}

// unmountImages is idempotent.
func (m *Manager) unmountImages(id string, cfg *model.ContainerConfig) error {
	var errs []error
	for i, mount := range cfg.Mounts {
		if mount.Image != nil {
			errs = append(errs, m.cfg.Rootfs.Unmount(m.imageDir(id, i)))
		}
	}
	return errors.Join(errs...)
}

// unmountContainer unmounts all file systems of a container that are its own. It is idempotent.
func (m *Manager) unmountContainer(c *container) error {
	pod := c.sandbox.Record()
	return errors.Join(m.unmountImages(c.id, c.Record().Config), m.cfg.Rootfs.Unmount(m.plainDir(c.id)), m.unmountRoot(&pod, c.id))
}
