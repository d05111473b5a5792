package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/table"
)

// deviceRow is a device of a device plugin in lists.
type deviceRow struct {
	Resource  string         `json:"resource"`
	ID        string         `json:"id,omitempty"` // empty: the resource has no device
	Healthy   bool           `json:"healthy"`
	NUMANodes []int64        `json:"numaNodes,omitempty"`
	Holders   []deviceHolder `json:"holders,omitempty"`
	Plugin    string         `json:"plugin,omitempty"` // its socket
	Connected bool           `json:"connected"`
	Problem   string         `json:"problem,omitempty"`
}

type deviceHolder struct {
	PodID       string `json:"podID"`
	Namespace   string `json:"namespace"`
	Pod         string `json:"pod"`
	Container   string `json:"container"`
	ContainerID string `json:"containerID,omitempty"` // empty: it has not been made yet
}

func (a *app) devicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices [RESOURCE...]",
		Short: "List devices of device plugins, and the containers that use them",
		Long: `List the devices that device plugins offer, and the containers that use them: those of the given resources, or
all.

berthd knows devices only if its device manager is on: device_plugins.enabled in its configuration.`,
		ValidArgsFunction: a.complete(0, resourceNames),
	}
	return listCommand(a, cmd, a.deviceRows,
		table.List[deviceRow]{Name: deviceRow.name, Columns: []table.Column[deviceRow]{
			{Title: "RESOURCE", Value: func(r deviceRow) string { return r.Resource }},
			{Title: "DEVICE", Value: func(r deviceRow) string { return r.ID }},
			{Title: "HEALTH", Value: func(r deviceRow) string { return r.health() }},
			{Title: "NUMA", Value: func(r deviceRow) string { return numbers(r.NUMANodes) }},
			{Title: "HELD BY", Value: func(r deviceRow) string { return r.heldBy() }},
			{Title: "PLUGIN", Wide: true, Value: func(r deviceRow) string { return r.Plugin }},
		}})
}

func (r deviceRow) name() string { return r.ID }

func (r deviceRow) health() string {
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

func (r deviceRow) heldBy() string {
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

// deviceRows warns of what is wrong with a resource.
func (a *app) deviceRows(ctx context.Context, conn *connection.Connection, resources []string) ([]deviceRow, error) {
	var rows []deviceRow
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
			if r.GetProblem() != "" {
				fmt.Fprintf(a.err, "warning: %s: %s\n", r.GetName(), r.GetProblem())
			}
			row := deviceRow{Resource: r.GetName(), Plugin: r.GetEndpoint(), Connected: r.GetConnected(),
				Problem: r.GetProblem()}
			if len(r.GetDevices()) == 0 {
				rows = append(rows, row)
			}
			for _, d := range r.GetDevices() {
				one := row
				one.ID, one.Healthy, one.NUMANodes = d.GetId(), d.GetHealthy(), slices.Clone(d.GetNumaNodes())
				for _, h := range d.GetHolders() {
					one.Holders = append(one.Holders, deviceHolder{
						h.GetPodSandboxId(), h.GetNamespace(), h.GetPod(), h.GetContainer(), h.GetContainerId(),
					})
				}
				rows = append(rows, one)
			}
		}
	}
	return rows, nil
}
