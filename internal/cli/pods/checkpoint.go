package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

type checkpointOptions struct {
	output  string
	pod     bool
	timeout time.Duration
}

func checkpointCommand(a *command.App) *cobra.Command {
	var o checkpointOptions
	cmd := &cobra.Command{
		Use:   "checkpoint CONTAINER -o FILE | checkpoint --pod POD -o DIR",
		Short: "Write a running container to an archive, or a pod to a directory",
		Long: `Write a running container to an archive: its memory, and what it has written to its root file system.
The container is frozen while the archive is written, and then continues. To restore it, run a manifest that names
the archive's path as the image of a container.

With --pod, all running containers of a pod are written to a directory, which is made if it is not there and must be
empty. They are all frozen before the first one is written, and until the last one is. To restore the pod, give the
directory and the pod's manifest to berth run --restore.

The daemon writes the files, on the machine on which it runs. It needs criu.`,
		Example: "  berth checkpoint hello/web -o /var/tmp/web.tar\n" +
			"  berth checkpoint --pod hello -o /var/tmp/hello\n" +
			"  berth run -d --restore /var/tmp/hello examples/hello.yaml",
		Args: command.Arguments(func(cmd *cobra.Command, args []string) error {
			switch {
			case o.output == "" && o.pod:
				return errors.New("no directory is given: give it with -o")
			case o.output == "":
				return errors.New("no archive is given: give its file with -o")
			case o.timeout < 0 || o.timeout > 0 && o.timeout < time.Second:
				return errors.New("--timeout is at least a second, such as 30s; 0 is ten minutes")
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			names := command.ContainerNames
			if o.pod {
				names = command.PodNames
			}
			return a.Complete(1, names)(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := filepath.Abs(o.output)
			if err != nil {
				return err
			}
			conn, err := a.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			write := o.container
			if o.pod {
				write = o.wholePod
			}
			if err := write(cmd.Context(), conn, args[0], path); err != nil {
				return err
			}
			fmt.Fprintln(a.Out, path)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.output, "output", "o", "",
		"the archive's `file`, which is replaced if it exists, or with --pod the directory")
	flags.BoolVar(&o.pod, "pod", false, "write all running containers of a pod")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long the checkpoint may take; 0: ten minutes")
	return cmd
}

func (o *checkpointOptions) container(ctx context.Context, conn *connection.Connection, name, path string) error {
	container, err := lookup.FindContainer(ctx, conn.Runtime, name)
	if err != nil {
		return err
	}
	_, err = conn.Runtime.CheckpointContainer(ctx, &cri.CheckpointContainerRequest{
		ContainerId: container.Id, Location: path, Timeout: int64(o.timeout / time.Second),
	})
	return connection.Plain(err)
}

// wholePod writes all running containers of a pod to a directory.
func (o *checkpointOptions) wholePod(ctx context.Context, conn *connection.Connection, name, path string) error {
	pod, err := lookup.Pod(ctx, conn.Runtime, name)
	if err != nil {
		return err
	}
	list, err := conn.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		PodSandboxId: pod.GetId(), State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		return connection.Plain(err)
	}
	request := &cri.CheckpointPodRequest{PodSandboxId: pod.GetId(), OutputPath: path}
	for _, c := range list.GetContainers() {
		request.ContainerIds = append(request.ContainerIds, c.GetId())
	}
	if len(request.ContainerIds) == 0 {
		return fmt.Errorf("pod %s has no running container", name)
	}
	made := os.Mkdir(path, 0o700) == nil // the daemon says what is wrong with the directory
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	if _, err := conn.Runtime.CheckpointPod(ctx, request); err != nil {
		if made {
			_ = os.Remove(path) // one that holds files is not removed
		}
		return connection.Plain(err)
	}
	return nil
}
