package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/device"
	"berth/internal/device/manager"
	"berth/internal/model"
	"berth/internal/pod/record"
)

// checkDevices refuses a pod that asks for devices in words that nobody understands, or on a node that has no manager.
func (m *Manager) checkDevices(cfg *model.SandboxConfig) error {
	asks, err := device.Asks(cfg.Annotations)
	if err != nil {
		return err
	}
	if len(asks) > 0 && m.cfg.Devices == nil {
		return fmt.Errorf("annotation %s: the pod asks for devices, and this node's device manager is off "+
			"(device_plugins.enabled): %w", device.Annotation, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// allocateDevices gives a container what its pod asks for it.
func (m *Manager) allocateDevices(ctx context.Context, c *container, pod *record.Sandbox) ([]model.Edits, error) {
	if m.cfg.Devices == nil {
		return nil, m.checkDevices(pod.Config) // it may have been switched off under a pod
	}
	asks, err := device.Asks(pod.Config.Annotations)
	if err != nil || len(asks) == 0 {
		return nil, err
	}
	req := manager.Request{
		SandboxID:   pod.ID,
		Namespace:   pod.Config.Metadata.Namespace,
		Pod:         pod.Config.Metadata.Name,
		ContainerID: c.id,
		Container:   c.Record().Config.Metadata.Name,
		Asks:        asks,
	}
	for _, other := range m.index.containersOf(pod.ID) {
		if other.Status().State == model.ContainerExited {
			req.Ended = append(req.Ended, other.id)
		}
	}
	return m.cfg.Devices.Allocate(ctx, req)
}

// prepareDevices tells plugins of a start. Whoever holds no device waits for nobody. A container whose devices cannot be
// prepared does not keep them.
func (m *Manager) prepareDevices(ctx context.Context, c *container) error {
	if m.cfg.Devices == nil {
		return nil
	}
	err := m.cfg.Devices.PreStart(ctx, c.id)
	if err != nil {
		m.cfg.Devices.Free(c.id)
	}
	return err
}

func (m *Manager) cancelDevices(c *container) {
	if m.cfg.Devices != nil {
		m.cfg.Devices.Cancel(c.sandbox.id, c.id)
	}
}

func (m *Manager) freeDevices(c *container) {
	if m.cfg.Devices != nil {
		m.cfg.Devices.Free(c.id)
	}
}

// reconcileDevices frees the devices of what is not there any more.
func (m *Manager) reconcileDevices() {
	if m.cfg.Devices == nil {
		return
	}
	m.cfg.Devices.Reconcile(
		func(id string) bool { return m.index.pods[id] != nil },
		func(id string) bool { return m.index.containers[id] != nil },
	)
}
