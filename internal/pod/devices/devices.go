// Package devices gives containers the devices that their pods request from the node's device manager.
package devices

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/device"
	"berth/internal/device/manager"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// Manager is what an Allocator asks of the node's device manager.
type Manager interface {
	// Allocate gives a container its devices, and returns what they add to it. After an error it holds none.
	Allocate(context.Context, manager.Request) ([]model.Edits, error)
	// Cancel gives back what was allocated for a container that could not be made. alone says that the pod has no other
	// container: then nothing stays reserved for those to come either.
	Cancel(sandboxID, containerID string, alone bool)
	// PreStart prepares a container's devices for its start.
	PreStart(ctx context.Context, containerID string) error
	// Free gives a container's devices back, and FreePod forgets a pod.
	Free(containerID string)
	FreePod(sandboxID string)
	// Reconcile frees what pods and containers hold that are not there any more.
	Reconcile(podLives, containerLives func(id string) bool)
}

// Allocator gives the containers of pods the devices that the pods ask for, if the node has a device manager. Its
// methods may be called concurrently.
type Allocator struct {
	Manager Manager // nil: the node has none
	Index   *index.Index
}

// Check refuses a pod that asks for devices in words that nobody understands, or on a node that has no manager.
func (d *Allocator) Check(cfg *model.SandboxConfig) error {
	asks, err := device.Asks(cfg.Annotations)
	if err != nil {
		return err
	}
	if len(asks) > 0 && d.Manager == nil {
		return fmt.Errorf("annotation %s: the pod asks for devices, and this node's device manager is off "+
			"(device_plugins.enabled): %w", device.Annotation, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Allocate gives a container what its pod asks for it.
func (d *Allocator) Allocate(ctx context.Context, c *index.Container, pod *record.Sandbox) ([]model.Edits, error) {
	if d.Manager == nil {
		return nil, d.Check(pod.Config) // it may have been switched off under a pod
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
	for _, other := range d.Index.ContainersOf(pod.ID) {
		if other.Status().State == model.ContainerExited {
			req.Ended = append(req.Ended, other.ID())
		}
	}
	return d.Manager.Allocate(ctx, req)
}

// Prepare tells plugins of a start. A container without devices does not wait. A container whose devices cannot be
// prepared gives them back.
func (d *Allocator) Prepare(ctx context.Context, c *index.Container) error {
	if d.Manager == nil {
		return nil
	}
	err := d.Manager.PreStart(ctx, c.ID())
	if err != nil {
		d.Manager.Free(c.ID())
	}
	return err
}

// Cancel gives back what was allocated for a container that could not be made.
func (d *Allocator) Cancel(c *index.Container) {
	if d.Manager == nil {
		return
	}
	others := slices.ContainsFunc(d.Index.ContainersOf(c.Sandbox.ID()), func(other *index.Container) bool {
		return other.ID() != c.ID()
	})
	d.Manager.Cancel(c.Sandbox.ID(), c.ID(), !others)
}

// Free gives a container's devices back.
func (d *Allocator) Free(c *index.Container) {
	if d.Manager != nil {
		d.Manager.Free(c.ID())
	}
}

// Reconcile frees the devices of what is not there any more.
func (d *Allocator) Reconcile() {
	if d.Manager == nil {
		return
	}
	d.Manager.Reconcile(
		func(id string) bool { s, _ := d.Index.ByID(id); return s != nil },
		func(id string) bool { _, c := d.Index.ByID(id); return c != nil },
	)
}

// FreePod forgets a pod's devices.
func (d *Allocator) FreePod(id string) {
	if d.Manager != nil {
		d.Manager.FreePod(id)
	}
}
