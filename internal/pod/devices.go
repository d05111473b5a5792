package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/device"
	"berth/internal/device/manager"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// devices are those that the node's device manager gives to containers. Its methods may be called concurrently.
type devices struct {
	manager Devices // nil: the node has none
	index   *index.Index
}

// check refuses a pod that asks for devices in words that nobody understands, or on a node that has no manager.
func (d *devices) check(cfg *model.SandboxConfig) error {
	asks, err := device.Asks(cfg.Annotations)
	if err != nil {
		return err
	}
	if len(asks) > 0 && d.manager == nil {
		return fmt.Errorf("annotation %s: the pod asks for devices, and this node's device manager is off "+
			"(device_plugins.enabled): %w", device.Annotation, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// allocate gives a container what its pod asks for it.
func (d *devices) allocate(ctx context.Context, c *index.Container, pod *record.Sandbox) ([]model.Edits, error) {
	if d.manager == nil {
		return nil, d.check(pod.Config) // it may have been switched off under a pod
	}
	asks, err := device.Asks(pod.Config.Annotations)
	if err != nil || len(asks) == 0 {
		return nil, err
	}
	req := manager.Request{
		SandboxID:   pod.ID,
		Namespace:   pod.Config.Metadata.Namespace,
		Pod:         pod.Config.Metadata.Name,
		ContainerID: c.ID(),
		Container:   c.Record().Config.Metadata.Name,
		Asks:        asks,
	}
	for _, other := range d.index.ContainersOf(pod.ID) {
		if other.Status().State == model.ContainerExited {
			req.Ended = append(req.Ended, other.ID())
		}
	}
	return d.manager.Allocate(ctx, req)
}

// prepare tells plugins of a start. Whoever holds no device waits for nobody. A container whose devices cannot be
// prepared does not keep them.
func (d *devices) prepare(ctx context.Context, c *index.Container) error {
	if d.manager == nil {
		return nil
	}
	err := d.manager.PreStart(ctx, c.ID())
	if err != nil {
		d.manager.Free(c.ID())
	}
	return err
}

func (d *devices) cancel(c *index.Container) {
	if d.manager != nil {
		d.manager.Cancel(c.Sandbox.ID(), c.ID())
	}
}

func (d *devices) free(c *index.Container) {
	if d.manager != nil {
		d.manager.Free(c.ID())
	}
}

// reconcile frees the devices of what is not there any more.
func (d *devices) reconcile() {
	if d.manager == nil {
		return
	}
	d.manager.Reconcile(
		func(id string) bool { s, _ := d.index.ByID(id); return s != nil },
		func(id string) bool { _, c := d.index.ByID(id); return c != nil },
	)
}

// freePod forgets a pod's devices.
func (d *devices) freePod(id string) {
	if d.manager != nil {
		d.manager.FreePod(id)
	}
}
