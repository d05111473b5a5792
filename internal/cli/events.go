package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// eventRow is something that has happened to a container or to a pod.
type eventRow struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"` // created, started, stopped or deleted
	Kind      string    `json:"kind"`  // pod or container
	Pod       string    `json:"pod"`
	Namespace string    `json:"namespace"`
	Container string    `json:"container,omitempty"`
	ID        string    `json:"id"`
	ExitCode  *int32    `json:"exitCode,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

func (a *app) eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happens to pods and containers",
		Long: `Show what happens to pods and containers from now on, until Ctrl-C: a line when one is created, started,
stopped or deleted. These are the events that a kubelet gets. With -o json each is a JSON object on a line of its own.`,
		Example: "  berth events -n kube-system\n  berth events -o json | jq -c 'select(.event == \"stopped\")'",
	}
	chosen := selection(cmd, cobra.NoArgs)
	cmd.RunE = a.connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
		stream, err := conn.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			var event *cri.ContainerEventResponse
			if event, err = stream.Recv(); err != nil {
				break
			}
			row, pod := newEventRow(event)
			if !chosen.Pod(pod) {
				continue
			}
			err = a.printEvent(row)
		}
		switch {
		case ctx.Err() != nil: // Ctrl-C is how it is meant to end
			return nil
		case errors.Is(err, io.EOF), connection.Code(err) == codes.Unavailable:
			return errors.New("the runtime has ended the stream: it was stopped or restarted")
		}
		return connection.Plain(err)
	})
	a.structured(cmd)
	return cmd
}

// newEventRow says what an event is about. The runtime gives the pod's status with each.
func newEventRow(e *cri.ContainerEventResponse) (*eventRow, *cri.PodSandbox) {
	status := e.GetPodSandboxStatus()
	pod := &cri.PodSandbox{Id: status.GetId(), Metadata: status.GetMetadata(), Labels: status.GetLabels()}
	row := &eventRow{
		Time: time.Unix(0, e.GetCreatedAt()), Kind: "pod", ID: e.GetContainerId(),
		Pod: pod.GetMetadata().GetName(), Namespace: pod.GetMetadata().GetNamespace(),
	}
	switch e.GetContainerEventType() {
	case cri.ContainerEventType_CONTAINER_CREATED_EVENT:
		row.Event = "created"
	case cri.ContainerEventType_CONTAINER_STARTED_EVENT:
		row.Event = "started"
	case cri.ContainerEventType_CONTAINER_STOPPED_EVENT:
		row.Event = "stopped"
	case cri.ContainerEventType_CONTAINER_DELETED_EVENT:
		row.Event = "deleted"
	}
	if e.GetContainerId() == status.GetId() {
		return row, pod
	}
	row.Kind = "container"
	for _, c := range e.GetContainersStatuses() {
		if c.GetId() != e.GetContainerId() {
			continue
		}
		row.Container = c.GetMetadata().GetName()
		if c.GetState() == cri.ContainerState_CONTAINER_EXITED {
			code := c.GetExitCode()
			row.ExitCode, row.Reason = &code, c.GetReason()
		}
	}
	return row, pod
}

func (a *app) printEvent(row *eventRow) error {
	if a.format == table.JSON {
		return table.Line(a.out, row)
	}
	if a.format.Template() {
		return table.Document(a.out, a.format, row)
	}
	if a.format == table.YAML {
		if _, err := fmt.Fprintln(a.out, "---"); err != nil {
			return err
		}
		return table.Document(a.out, a.format, row)
	}
	c := lookup.Container{Container: &cri.Container{Metadata: &cri.ContainerMetadata{Name: row.Container}},
		Pod: &cri.PodSandbox{Metadata: &cri.PodSandboxMetadata{Name: row.Pod, Namespace: row.Namespace}}}
	name := c.ShortName()
	if row.Kind == "pod" {
		name = lookup.ShortPodName(c.Pod)
	} else if row.Container == "" { // it is gone, and with it its name
		name = lookup.ShortPodName(c.Pod) + " " + table.ShortID(row.ID)
	}
	text := ""
	if row.ExitCode != nil && row.Event == "stopped" {
		text = fmt.Sprintf(", exit code %d", *row.ExitCode)
		if row.Reason != "" && row.Reason != "Completed" && row.Reason != "Error" {
			text += ", " + row.Reason
		}
	}
	_, err := fmt.Fprintf(a.out, "%s  %-9s  %-7s  %s%s\n", row.Time.Format("2006-01-02T15:04:05.000Z07:00"), row.Kind,
		row.Event, table.Printable(name), table.Printable(text))
	return err
}
