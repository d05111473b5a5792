package berthv1

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	api "berth/api/berth/v1"
	"berth/internal/model"
)

// Devices is the device manager as this API uses it.
type Devices interface {
	List() []model.DeviceResource
}

type devices struct {
	api.UnimplementedDevicesServer
	manager Devices
}

// List tells of devices and who holds them.
func (d *devices) List(_ context.Context, req *api.ListDevicesRequest) (*api.ListDevicesResponse, error) {
	if d.manager == nil {
		return nil, fmt.Errorf("this node's device manager is off (device_plugins.enabled): %w",
			errdefs.ErrFailedPrecondition)
	}
	out := &api.ListDevicesResponse{}
	for _, r := range d.manager.List() {
		if req.GetResource() != "" && req.GetResource() != r.Name {
			continue
		}
		resource := &api.Resource{Name: r.Name, Endpoint: r.Endpoint, Connected: r.Connected, Problem: r.Problem}
		for _, one := range r.Devices {
			device := &api.Device{Id: one.ID, Healthy: one.Healthy, NumaNodes: one.NUMA}
			for _, h := range one.Holders {
				device.Holders = append(device.Holders, &api.Holder{
					PodSandboxId: h.SandboxID, Namespace: h.Namespace, Pod: h.Pod, Container: h.Container, ContainerId: h.ContainerID,
				})
			}
			resource.Devices = append(resource.Devices, device)
		}
		out.Resources = append(out.Resources, resource)
	}
	if req.GetResource() != "" && len(out.Resources) == 0 {
		return nil, fmt.Errorf("no device plugin of this node offers %s: %w", req.GetResource(), errdefs.ErrNotFound)
	}
	return out, nil
}
