package logview

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/crilog"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
)

// Of is the log of a container, followed until the container has ended where watch is not nil.
func Of(ctx context.Context, runtime cri.RuntimeServiceClient, c *lookup.Container, options crilog.Options,
	watch *launch.Watch) (Log, error) {
	response, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
	if err != nil {
		return Log{}, connection.Plain(err)
	}
	status := response.GetStatus()
	if status.GetLogPath() == "" {
		return Log{}, fmt.Errorf("container %s has no log: it was created without a log path", c.ShortName())
	}
	if _, err := os.Stat(status.GetLogPath()); errors.Is(err, fs.ErrNotExist) && watch == nil &&
		status.GetState() == cri.ContainerState_CONTAINER_CREATED {
		return Log{}, fmt.Errorf("container %s has not been started", c.ShortName())
	}
	if watch != nil {
		ended := make(chan struct{})
		options.Ended = ended
		go func() {
			defer close(ended)
			_, _ = watch.Exited(ctx, c.Id) // gone or unknown: nothing more comes either
		}()
	}
	return Log{Path: status.GetLogPath(), Options: options}, nil
}
