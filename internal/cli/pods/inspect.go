package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/images"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// inspection is all that a runtime says of one thing.
type inspection struct {
	Kind   string         `json:"kind"`
	Status map[string]any `json:"status"`
	Info   map[string]any `json:"info,omitempty"` // what the runtime adds of its own
}

func inspectCommand(a *command.App) *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use:   "inspect NAME...",
		Short: "Show all details of pods, containers or images",
		Long: `Show all details of pods, containers or images, as JSON, or as YAML with -o yaml. A name is looked up
among pods, then containers, then images. --type restricts the search to one of these.`,
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames, command.ImageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch kind {
			case "", "pod", "container", "image":
			default:
				return command.Usage(cmd, fmt.Errorf("--type: %q is not one of pod, container and image", kind))
			}
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			var all []*inspection
			for _, name := range args {
				one, err := inspect(ctx, conn, kind, name)
				if err != nil {
					return err
				}
				all = append(all, one)
			}
			return a.Details(all)
		},
	}
	cmd.Flags().StringVar(&kind, "type", "", "pod, container or image")
	_ = cmd.RegisterFlagCompletionFunc("type",
		cobra.FixedCompletions([]string{"pod", "container", "image"}, cobra.ShellCompDirectiveNoFileComp))
	a.Structured(cmd)
	return cmd
}

func inspect(ctx context.Context, conn *connection.Connection, kind, name string) (*inspection, error) {
	var none *lookup.NotFoundError
	var near []string
	for _, try := range []struct {
		kind string
		look func(context.Context, *connection.Connection, string) (*inspection, error)
	}{{"pod", inspectPod}, {"container", inspectContainer}, {"image", inspectImage}} {
		if kind != "" && kind != try.kind {
			continue
		}
		found, err := try.look(ctx, conn, name)
		if errors.As(err, &none) {
			near = append(near, none.Near...)
		}
		if err == nil || kind != "" || !errors.As(err, &none) {
			return found, err
		}
	}
	slices.Sort(near)
	return nil, &lookup.NotFoundError{Kind: "pod, container or image", Name: name, Near: slices.Compact(near),
		Try: "`berth pods`, `berth ps -a` and `berth images` list what there is."}
}

func inspectPod(ctx context.Context, conn *connection.Connection, name string) (*inspection, error) {
	pod, err := lookup.Pod(ctx, conn.Runtime, name)
	if err != nil {
		return nil, err
	}
	response, err := conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.Id, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	return newInspection("pod", response.GetStatus(), response.GetInfo())
}

func inspectContainer(ctx context.Context, conn *connection.Connection, name string) (*inspection, error) {
	container, err := lookup.FindContainer(ctx, conn.Runtime, name)
	if err != nil {
		return nil, err
	}
	response, err := conn.Runtime.ContainerStatus(ctx,
		&cri.ContainerStatusRequest{ContainerId: container.Id, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	return newInspection("container", response.GetStatus(), response.GetInfo())
}

func inspectImage(ctx context.Context, conn *connection.Connection, name string) (*inspection, error) {
	response, err := conn.Images.ImageStatus(ctx,
		&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	if response.GetImage() == nil {
		return nil, images.NotFound(ctx, conn, name)
	}
	return newInspection("image", response.GetImage(), response.GetInfo())
}

func newInspection(kind string, status proto.Message, info map[string]string) (*inspection, error) {
	data, err := protojson.Marshal(status)
	if err != nil {
		return nil, err
	}
	one := &inspection{Kind: kind, Info: map[string]any{}}
	if err := json.Unmarshal(data, &one.Status); err != nil {
		return nil, err
	}
	if err := wordTimes(one.Status); err != nil {
		return nil, err
	}
	for key, text := range info {
		var value any
		if table.Decode([]byte(text), &value) != nil {
			value = text
		}
		one.Info[key] = value
	}
	return one, nil
}

// wordTimes writes the times of a status as lists have them, in RFC 3339. The CRI has nanoseconds since 1970, 0 for
// never, and JSON has these as text.
func wordTimes(status map[string]any) error {
	for _, key := range []string{"createdAt", "startedAt", "finishedAt"} {
		text, ok := status[key].(string)
		if !ok {
			continue
		}
		nanoseconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%s of the runtime: %w", key, err)
		}
		if nanoseconds == 0 {
			delete(status, key)
			continue
		}
		status[key] = time.Unix(0, nanoseconds).UTC()
	}
	return nil
}
