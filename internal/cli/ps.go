package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// containerRow is a container in lists.
type containerRow struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Pod         string            `json:"pod"`
	Namespace   string            `json:"namespace"`
	PodID       string            `json:"podID"`
	Kind        string            `json:"kind,omitempty"` // init or sidecar
	State       string            `json:"state"`
	Attempt     uint32            `json:"attempt"`
	Image       string            `json:"image"`
	ImageID     string            `json:"imageID"`
	CreatedAt   time.Time         `json:"createdAt"`
	StartedAt   *time.Time        `json:"startedAt,omitempty"`
	FinishedAt  *time.Time        `json:"finishedAt,omitempty"`
	ExitCode    *int32            `json:"exitCode,omitempty"`
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	display string // as the table names it
}

func (a *app) psCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ps [POD...]",
		Short: "List containers",
		Long:  "List the running containers of the given pods, or of all pods.",
		Example: `  berth ps -a -l app=hello
  berth ps -o jsonpath='{range [*]}{.pod}/{.name}{"\t"}{.state}{"\n"}{end}'`,
		ValidArgsFunction: a.complete(0, podNames),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list containers that do not run")
	chosen := selection(cmd, cobra.ArbitraryArgs)
	rows := func(ctx context.Context, conn *connection.Connection, pods []string) ([]containerRow, error) {
		return containerRows(ctx, conn, pods, all, chosen)
	}
	return listCommand(a, cmd, rows,
		table.List[containerRow]{Name: containerRow.name, ID: containerRow.id, Columns: []table.Column[containerRow]{
			{Title: "CONTAINER", Value: func(r containerRow) string { return r.display }},
			{Title: "STATE", Value: func(r containerRow) string { return r.status(time.Now()) }},
			{Title: "IMAGE", Value: func(r containerRow) string { return r.Image }},
			{Title: "AGE", Value: func(r containerRow) string { return table.Age(time.Since(r.CreatedAt)) },
				Order: func(a, b containerRow) int { return b.CreatedAt.Compare(a.CreatedAt) }},
			{Title: "ID", Value: func(r containerRow) string { return table.ShortID(r.ID) }},
			{Title: "KIND", Wide: true, Value: func(r containerRow) string { return r.Kind }},
			{Title: "ATTEMPT", Wide: true, Value: func(r containerRow) string { return fmt.Sprint(r.Attempt) },
				Order: func(a, b containerRow) int { return cmp.Compare(a.Attempt, b.Attempt) }},
			{Title: "NAMESPACE", Wide: true, Value: func(r containerRow) string { return r.Namespace }},
			{Title: "POD ID", Wide: true, Value: func(r containerRow) string { return table.ShortID(r.PodID) }},
			{Title: "IMAGE ID", Wide: true, Value: func(r containerRow) string { return table.ShortID(r.ImageID) }},
		}})
}

func (r containerRow) name() string { return r.display }
func (r containerRow) id() string   { return r.ID }

func containerRows(ctx context.Context, conn *connection.Connection, pods []string, all bool,
	chosen *lookup.Selection) ([]containerRow, error) {
	wanted := map[string]bool{}
	for _, name := range pods {
		pod, err := lookup.Pod(ctx, conn.Runtime, name)
		if err != nil {
			return nil, err
		}
		wanted[pod.Id] = true
	}
	list, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil, err
	}
	var rows []containerRow
	for _, c := range list {
		if !chosen.Container(c) {
			continue
		}
		if len(wanted) > 0 && !wanted[c.PodSandboxId] || !all && c.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		// The list says neither since when nor how it ended.
		status, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			if isGone(err) {
				continue
			}
			return nil, err
		}
		rows = append(rows, newContainerRow(c, status.GetStatus()))
	}
	return rows, nil
}

func newContainerRow(c *lookup.Container, status *cri.ContainerStatus) containerRow {
	row := containerRow{
		ID: c.Id, Name: c.GetMetadata().GetName(), Pod: c.Pod.GetMetadata().GetName(),
		Namespace: c.Pod.GetMetadata().GetNamespace(),
		PodID:     c.PodSandboxId, Kind: c.Annotations[manifest.AnnotationKind], State: containerState(status.GetState()),
		Attempt: c.GetMetadata().GetAttempt(), Image: imageName(status), ImageID: status.GetImageId(),
		CreatedAt: time.Unix(0, status.GetCreatedAt()), Reason: status.GetReason(), Message: status.GetMessage(),
		Labels: c.Labels, Annotations: c.Annotations, display: c.ShortName(),
	}
	if row.State == "running" && row.Reason == reasonPaused {
		row.State = "paused"
	}
	row.StartedAt, row.FinishedAt = moment(status.GetStartedAt()), moment(status.GetFinishedAt())
	if status.GetState() == cri.ContainerState_CONTAINER_EXITED {
		code := status.GetExitCode()
		row.ExitCode = &code
	}
	return row
}

// imageName is what the image was asked for as, else what is known of it.
func imageName(status *cri.ContainerStatus) string {
	for _, name := range []string{status.GetImage().GetUserSpecifiedImage(), status.GetImage().GetImage(),
		status.GetImageRef()} {
		if name != "" {
			return name
		}
	}
	return status.GetImageId()
}

func moment(nanoseconds int64) *time.Time {
	if nanoseconds <= 0 {
		return nil
	}
	at := time.Unix(0, nanoseconds)
	return &at
}

// reasonPaused is how the runtime tells of a pause, for which CRI v1 has no state.
const reasonPaused = "Paused"

func containerState(state cri.ContainerState) string {
	switch state {
	case cri.ContainerState_CONTAINER_CREATED:
		return "created"
	case cri.ContainerState_CONTAINER_RUNNING:
		return "running"
	case cri.ContainerState_CONTAINER_EXITED:
		return "exited"
	}
	return "unknown"
}

// status is the state in a table: since when, or how it ended.
func (r containerRow) status(now time.Time) string {
	switch {
	case r.State == "running" && r.StartedAt != nil:
		return "running " + table.Age(now.Sub(*r.StartedAt))
	case r.ExitCode != nil:
		text := fmt.Sprintf("exited (%d)", *r.ExitCode)
		if r.Reason != "" && r.Reason != "Completed" && r.Reason != "Error" {
			text += " " + r.Reason
		}
		return text
	}
	return r.State
}
