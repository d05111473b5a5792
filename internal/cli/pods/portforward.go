package pods

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/forward"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
)

func portForwardCommand(a *command.App) *cobra.Command {
	var bind []string
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Reach ports of a pod on ports of this machine",
		Long: "Reach ports of a pod on ports of this machine, until Ctrl-C. " +
			"An empty LOCAL (:REMOTE) is any free port.",
		Example:           "  berth port-forward hello 8080:80",
		Args:              command.Arguments(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.Complete(1, command.PodNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []forward.Port
			for _, text := range args[1:] {
				port, err := forward.ParsePort(text)
				if err != nil {
					return command.Usage(cmd, err)
				}
				ports = append(ports, port)
			}
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			pod, err := lookup.Pod(ctx, conn.Runtime, args[0])
			if err != nil {
				return err
			}
			if pod.GetState() != cri.PodSandboxState_SANDBOX_READY {
				return fmt.Errorf("pod %s is stopped", lookup.PodName(pod))
			}
			return forwardPorts(ctx, a, conn, pod, bind, ports)
		},
	}
	cmd.Flags().StringSliceVar(&bind, "bind", []string{"localhost"}, "addresses of this machine to listen on")
	return cmd
}

func forwardPorts(ctx context.Context, a *command.App, conn *connection.Connection, pod *cri.PodSandbox, bind []string,
	ports []forward.Port) error {
	f := &forward.Forwarder{Pod: lookup.ShortPodName(pod), Out: a.Out, Err: a.Err}
	f.Dial = func(ctx context.Context) (httpstream.Connection, error) {
		response, err := conn.Runtime.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: pod.GetId()})
		if err != nil {
			return nil, connection.Plain(err)
		}
		address, err := url.Parse(response.GetUrl())
		if err != nil {
			return nil, fmt.Errorf("the runtime's streaming address: %w", err)
		}
		// SPDY: the streaming server's WebSockets carry a port each, and only those named beforehand.
		transport, upgrader, err := spdy.RoundTripperFor(streaming.ClientConfig(address))
		if err != nil {
			return nil, err
		}
		streams, _, err := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, address).
			Dial(forward.Protocol)
		return streams, err
	}
	return f.Run(ctx, bind, ports)
}
