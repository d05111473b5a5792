package pod

import (
	"context"
	"errors"

	"berth/internal/model"
	"berth/internal/rootfs"
	"berth/internal/volume"
)

// ListVolumes returns the named volumes of the node, by name.
func (m *Manager) ListVolumes(context.Context) ([]*model.Volume, error) {
	return m.storage.Volumes.List(), nil
}

// Volume returns one named volume, or errdefs.ErrNotFound.
func (m *Manager) Volume(_ context.Context, name string) (*model.Volume, error) {
	return m.storage.Volumes.Get(name)
}

// CreateVolume makes an empty named volume. One of this name that is there already is errdefs.ErrAlreadyExists.
func (m *Manager) CreateVolume(ctx context.Context, name string) (*model.Volume, error) {
	if err := m.storage.Volumes.Create(ctx, name); err != nil {
		return nil, err
	}
	return m.storage.Volumes.Get(name)
}

// VolumeUsage counts the bytes and inodes of a volume. It examines every file.
func (m *Manager) VolumeUsage(ctx context.Context, name string) (bytes, inodes uint64, err error) {
	v, err := m.storage.Volumes.Get(name)
	if err != nil {
		return 0, 0, err
	}
	return rootfs.Usage(ctx, v.Path)
}

// RemoveVolume removes a named volume with its contents. If a container uses the volume, even one that has ended, the
// error is errdefs.ErrFailedPrecondition.
func (m *Manager) RemoveVolume(ctx context.Context, name string) error {
	err := m.storage.Volumes.Remove(ctx, name)
	var used *volume.InUseError
	if errors.As(err, &used) {
		return &volume.InUseError{Name: used.Name, Users: m.index.ContainerNames(used.Users)}
	}
	return err
}
