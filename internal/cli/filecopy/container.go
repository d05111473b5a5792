package filecopy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
)

// Container opens the root of a container that runs on this machine.
func Container(ctx context.Context, runtime cri.RuntimeServiceClient, id string) (*Tree, error) {
	before, err := ask(ctx, runtime, id)
	if err != nil {
		return nil, err
	}
	switch before.Setup.Engine {
	case "stage", "libcontainer", "libcontainer, then stage", "criu":
	default:
		return nil, fmt.Errorf("engine %q of the container may keep its files away from this machine: "+
			"give them to `berth exec -i` with tar", before.Setup.Engine)
	}
	tree, err := OpenContainer(before.PID, before.Cgroup)
	if err != nil {
		return nil, err
	}
	// The kernel may give the PID of a process that has ended to another one.
	after, err := ask(ctx, runtime, id)
	if err == nil && after.PID != before.PID {
		err = errors.New("the container has ended")
	}
	if err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// process is where Berth says that a container runs.
type process struct {
	PID    int    `json:"pid"`
	Cgroup string `json:"cgroup"`
	Setup  struct {
		Engine string `json:"engine"`
	} `json:"setup"`
}

func ask(ctx context.Context, runtime cri.RuntimeServiceClient, id string) (*process, error) {
	response, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	if response.GetStatus().GetState() != cri.ContainerState_CONTAINER_RUNNING {
		return nil, errors.New("the container is not running")
	}
	var p process
	if err := json.Unmarshal([]byte(response.GetInfo()["info"]), &p); err != nil {
		return nil, fmt.Errorf("the runtime does not say where the container's process is: %w", err)
	}
	return &p, nil
}
