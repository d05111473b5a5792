package listing

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// Device is a device of a device plugin in lists.
type Device struct {
	Resource  string   `json:"resource"`
	ID        string   `json:"id,omitempty"` // empty: the resource has no device
	Healthy   bool     `json:"healthy"`
	NUMANodes []int64  `json:"numaNodes,omitempty"`
	Holders   []Holder `json:"holders,omitempty"`
	Plugin    string   `json:"plugin,omitempty"` // its socket
	Connected bool     `json:"connected"`
	Problem   string   `json:"problem,omitempty"`
}

// Holder is a container that uses a device.
type Holder struct {
	PodID       string `json:"podID"`
	Namespace   string `json:"namespace"`
	Pod         string `json:"pod"`
	Container   string `json:"container"`
	ContainerID string `json:"containerID,omitempty"` // empty: it has not been made yet
}

// Health words whether a device is healthy; empty: the resource has no device.
func (r Device) Health() string {
	switch {
	case r.ID == "":
		return ""
	case r.Healthy:
		return "healthy"
	case !r.Connected:
		return "unhealthy (plugin away)"
	}
	return "unhealthy"
}

// HeldBy names the containers that use the device.
func (r Device) HeldBy() string {
	var names []string
	for _, h := range r.Holders {
		name := h.Pod + "/" + h.Container
		if h.Namespace != "default" {
			name = h.Namespace + "/" + name
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// Devices lists the devices of the given resources, or of all.
func Devices(ctx context.Context, conn *connection.Connection, resources []string) ([]Device, error) {
	var rows []Device
	if len(resources) == 0 {
		resources = []string{""}
	}
	for _, name := range resources {
		list, err := conn.Devices.List(ctx, &berthv1.ListDevicesRequest{Resource: name})
		if connection.Code(err) == codes.Unimplemented {
			return nil, fmt.Errorf("the runtime on %s has no device manager: it is another runtime, or an old version of Berth",
				conn.Address)
		}
		if err != nil {
			return nil, connection.Plain(err)
		}
		for _, r := range list.GetResources() {
			row := Device{Resource: r.GetName(), Plugin: r.GetEndpoint(), Connected: r.GetConnected(),
				Problem: r.GetProblem()}
			if len(r.GetDevices()) == 0 {
				rows = append(rows, row)
			}
			for _, d := range r.GetDevices() {
				one := row
				one.ID, one.Healthy, one.NUMANodes = d.GetId(), d.GetHealthy(), slices.Clone(d.GetNumaNodes())
				for _, h := range d.GetHolders() {
					one.Holders = append(one.Holders, Holder{
						h.GetPodSandboxId(), h.GetNamespace(), h.GetPod(), h.GetContainer(), h.GetContainerId(),
					})
				}
				rows = append(rows, one)
			}
		}
	}
	return rows, nil
}
