package listing

import (
	"context"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// Container is a container in lists.
type Container struct {
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

	Display string `json:"-"` // as tables name it
}

// Containers lists the selected containers of the given pods, or of all: those that run, or with all any.
func Containers(ctx context.Context, conn *connection.Connection, pods []string, all bool,
	chosen *lookup.Selection) ([]Container, error) {
	wanted := map[string]bool{}
	for _, name := range pods {
		pod, err := lookup.Pod(ctx, conn.Runtime, name)
		if err != nil {
			return nil, err
		}
		wanted[pod.Id] = true
	}
	reading, err := Read(ctx, conn)
	if err != nil {
		return nil, err
	}
	return reading.Containers(ctx, func(c *lookup.Container) bool {
		return chosen.Container(c) && (len(wanted) == 0 || wanted[c.PodSandboxId]) &&
			(all || c.State == cri.ContainerState_CONTAINER_RUNNING)
	})
}

// Containers are the containers of a reading that are wanted; nil wants all.
func (r *Reading) Containers(ctx context.Context, wanted func(*lookup.Container) bool) ([]Container, error) {
	var rows []Container
	for _, c := range r.containers {
		if wanted != nil && !wanted(c) {
			continue
		}
		// The list says neither since when nor how it ended.
		status, err := r.Status(ctx, c.Id)
		if err != nil {
			return nil, err
		}
		if status != nil {
			rows = append(rows, newContainer(c, status))
		}
	}
	return rows, nil
}

func newContainer(c *lookup.Container, status *cri.ContainerStatus) Container {
	row := Container{
		ID: c.Id, Name: c.GetMetadata().GetName(), Pod: c.Pod.GetMetadata().GetName(),
		Namespace: c.Pod.GetMetadata().GetNamespace(),
		PodID:     c.PodSandboxId, Kind: c.Annotations[manifest.AnnotationKind], State: StateName(status.GetState()),
		Attempt: c.GetMetadata().GetAttempt(), Image: imageName(status), ImageID: status.GetImageId(),
		CreatedAt: time.Unix(0, status.GetCreatedAt()), Reason: status.GetReason(), Message: status.GetMessage(),
		Labels: c.Labels, Annotations: c.Annotations, Display: c.ShortName(),
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

// StateName words the state of a container.
func StateName(state cri.ContainerState) string {
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

// Status is the state in a table: since when, or how it ended.
func (r Container) Status(now time.Time) string {
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
