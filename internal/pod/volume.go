package pod

import (
	"context"
	"errors"
	"fmt"

	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/volume"
)

// ListVolumes returns the named volumes of the node, by name.
func (m *Manager) ListVolumes(context.Context) ([]*model.Volume, error) {
	return m.storage.volumes.List(), nil
}

// Volume returns one named volume, or errdefs.ErrNotFound.
func (m *Manager) Volume(_ context.Context, name string) (*model.Volume, error) {
	return m.storage.volumes.Get(name)
}

// VolumeUsage counts what is in a volume: bytes and inodes. It looks at every file.
func (m *Manager) VolumeUsage(ctx context.Context, name string) (bytes, inodes uint64, err error) {
	v, err := m.storage.volumes.Get(name)
	if err != nil {
		return 0, 0, err
	}
	return rootfs.Usage(ctx, v.Path)
}

// RemoveVolume removes a named volume with what is in it. One that a container uses, be it an ended one, stays:
// errdefs.ErrFailedPrecondition.
func (m *Manager) RemoveVolume(ctx context.Context, name string) error {
	err := m.storage.volumes.Remove(ctx, name)
	var used *volume.InUseError
	if errors.As(err, &used) {
		return &volume.InUseError{Name: used.Name, Users: m.storage.containerNames(used.Users)}
	}
	return err
}

// containerNames says which containers IDs are of, as messages name them.
func (st *storage) containerNames(ids []string) []string {
	st.index.mu.RLock()
	defer st.index.mu.RUnlock()
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = record.ShortID(id)
		if c := st.index.containers[id]; c != nil {
			st := c.Status()
			pod := c.sandbox.Status()
			names[i] = fmt.Sprintf("%s (%s) of pod %s/%s", st.Config.Metadata.Name, record.ShortID(id), pod.Config.Metadata.Namespace,
				pod.Config.Metadata.Name)
		}
	}
	return names
}
