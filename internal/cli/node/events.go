package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/table"
)

func eventsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happens to pods and containers",
		Long: `Show what happens to pods and containers from now on, until Ctrl-C: a line when one is created, started,
stopped or deleted. These are the events that a kubelet gets. With -o json each is a JSON object on a line of its own.`,
		Example: "  berth events -n kube-system\n  berth events -o json | jq -c 'select(.event == \"stopped\")'",
	}
	chosen := command.Select(cmd, cobra.NoArgs)
	cmd.RunE = a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
		stream, err := conn.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			var event *cri.ContainerEventResponse
			if event, err = stream.Recv(); err != nil {
				break
			}
			row, pod := listing.NewEvent(event)
			if !chosen.Pod(pod) {
				continue
			}
			err = printEvent(a, row)
		}
		switch {
		case ctx.Err() != nil: // Ctrl-C is how it is meant to end
			return nil
		case errors.Is(err, io.EOF), connection.Code(err) == codes.Unavailable:
			return errors.New("the runtime has ended the stream: it was stopped or restarted")
		}
		return connection.Plain(err)
	})
	a.Structured(cmd)
	return cmd
}

func printEvent(a *command.App, row *listing.Event) error {
	if a.Format == table.JSON {
		return table.Line(a.Out, row)
	}
	if a.Format.Template() {
		return table.Document(a.Out, a.Format, row)
	}
	if a.Format == table.YAML {
		if _, err := fmt.Fprintln(a.Out, "---"); err != nil {
			return err
		}
		return table.Document(a.Out, a.Format, row)
	}
	text := row.Subject()
	if outcome := row.Outcome(); outcome != "" {
		text += ", " + outcome
	}
	_, err := fmt.Fprintf(a.Out, "%s  %-9s  %-7s  %s\n", row.Time.Format("2006-01-02T15:04:05.000Z07:00"), row.Kind,
		row.Event, table.Printable(text))
	return err
}
