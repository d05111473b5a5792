package listing

import (
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// Event is something that has happened to a container or to a pod.
type Event struct {
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

// NewEvent says what an event is about. The runtime gives the pod's status with each.
func NewEvent(e *cri.ContainerEventResponse) (*Event, *cri.PodSandbox) {
	status := e.GetPodSandboxStatus()
	pod := &cri.PodSandbox{Id: status.GetId(), Metadata: status.GetMetadata(), Labels: status.GetLabels()}
	row := &Event{
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

// Subject names what the event is about, as other lists do.
func (r *Event) Subject() string {
	c := lookup.Container{Container: &cri.Container{Metadata: &cri.ContainerMetadata{Name: r.Container}},
		Pod: &cri.PodSandbox{Metadata: &cri.PodSandboxMetadata{Name: r.Pod, Namespace: r.Namespace}}}
	switch {
	case r.Kind == "pod":
		return lookup.ShortPodName(c.Pod)
	case r.Container == "": // it is gone, and with it its name
		return lookup.ShortPodName(c.Pod) + " " + table.ShortID(r.ID)
	}
	return c.ShortName()
}

// Outcome words how a container has ended; empty: the event is another.
func (r *Event) Outcome() string {
	if r.ExitCode == nil || r.Event != "stopped" {
		return ""
	}
	text := fmt.Sprintf("exit code %d", *r.ExitCode)
	if r.Reason != "" && r.Reason != "Completed" && r.Reason != "Error" {
		text += ", " + r.Reason
	}
	return text
}
