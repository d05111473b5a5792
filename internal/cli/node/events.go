package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

func eventsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happens to pods and containers",
		Long: `Show what happens to pods and containers from now on, until Ctrl-C: a line when one is created, started,
stopped or deleted. These are the events that a kubelet gets. With -o json each is a JSON object on a line of its own.

With --audit, show instead who runs commands in containers, attaches to them and forwards ports: a line when it begins,
and one when it ends. The daemon writes these lines to its audit.file, which has to be configured.`,
		Example: "  berth events -n kube-system\n  berth events -o json | jq -c 'select(.event == \"stopped\")'",
	}
	var audit bool
	chosen := command.Select(cmd, cobra.NoArgs)
	pods := a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
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
		return endOfEvents(ctx, err)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !audit {
			return pods(cmd, args)
		}
		return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
			return endOfEvents(ctx, followAudit(ctx, a, conn, &auditFilter{conn: conn, chosen: chosen}))
		})(cmd, args)
	}
	cmd.Flags().BoolVar(&audit, "audit", false, "show who runs what in which container")
	a.Structured(cmd)
	return cmd
}

// endOfEvents is the error for the end of a stream.
func endOfEvents(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // Ctrl-C is how it is meant to end
		return nil
	case errors.Is(err, io.EOF), connection.Code(err) == codes.Unavailable:
		return errors.New("the runtime has ended the stream: it was stopped or restarted")
	}
	return connection.Plain(err)
}

// auditFilter selects lines of the audit. A line names a pod but not its labels, so the runtime is asked for these,
// once for each pod. The lines of a pod that has been removed since have no labels.
type auditFilter struct {
	conn   *connection.Connection
	chosen *lookup.Selection
	known  map[string]bool // by the pod's ID: whether its labels are the chosen ones
}

// maxKnown is how many pods an auditFilter remembers.
const maxKnown = 4096

func (f *auditFilter) has(ctx context.Context, line *listing.AuditLine) (bool, error) {
	switch {
	case f.chosen.Empty():
		return true, nil
	case line.PodID == "", f.chosen.Namespace != "" && line.Namespace != f.chosen.Namespace:
		return false, nil
	case f.chosen.Labels == "":
		return true, nil
	}
	has, ok := f.known[line.PodID]
	if ok {
		return has, nil
	}
	pods, err := f.conn.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{Id: line.PodID}})
	if err != nil {
		return false, err
	}
	for _, pod := range pods.Items {
		has = pod.Id == line.PodID && f.chosen.Pod(pod)
	}
	if f.known == nil || len(f.known) >= maxKnown {
		f.known = map[string]bool{}
	}
	f.known[line.PodID] = has
	return has, nil
}

// followAudit shows the chosen lines of the audit as they are written.
func followAudit(ctx context.Context, a *command.App, conn *connection.Connection, chosen *auditFilter) error {
	stream, err := conn.Audit.Follow(ctx, &berthv1.FollowRequest{})
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if connection.Code(err) == codes.Unimplemented {
			return errors.New("the runtime has no audit: it is another runtime, or an old version of Berth")
		}
		if err != nil {
			return err
		}
		line, err := listing.ParseAudit(message.GetJson())
		if err != nil {
			return err
		}
		if has, err := chosen.has(ctx, line); err != nil {
			return err
		} else if !has {
			continue
		}
		if a.Format.Structured() {
			err = printRecord(a, json.RawMessage(message.GetJson()))
		} else {
			_, err = fmt.Fprintln(a.Out, line)
		}
		if err != nil {
			return err
		}
	}
}

func printEvent(a *command.App, row *listing.Event) error {
	if a.Format.Structured() {
		return printRecord(a, row)
	}
	text := row.Subject()
	if outcome := row.Outcome(); outcome != "" {
		text += ", " + outcome
	}
	_, err := fmt.Fprintf(a.Out, "%s  %-9s  %-7s  %s\n", row.Time.Format("2006-01-02T15:04:05.000Z07:00"), row.Kind,
		row.Event, table.Printable(text))
	return err
}

// printRecord prints one of many records for programs.
func printRecord(a *command.App, record any) error {
	switch a.Format {
	case table.JSON:
		return table.Line(a.Out, record)
	case table.YAML:
		if _, err := fmt.Fprintln(a.Out, "---"); err != nil {
			return err
		}
	}
	return table.Document(a.Out, a.Format, record)
}
