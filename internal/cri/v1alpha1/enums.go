package v1alpha1

import (
	"time"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

var protocols = map[api.Protocol]model.Protocol{
	api.Protocol_TCP: model.TCP,
	api.Protocol_UDP: model.UDP,
}

func fromSandboxState(s model.SandboxState) api.PodSandBoxState {
	if s == model.SandboxReady {
		return api.PodSandBoxState_READY
	}
	return api.PodSandBoxState_NOTREADY
}

// fromContainerState calls a paused container running, which its processes are to the interface.
func fromContainerState(s model.ContainerState) api.ContainerState {
	switch s {
	case model.ContainerCreated:
		return api.ContainerState_CREATED
	case model.ContainerRunning, model.ContainerPaused:
		return api.ContainerState_RUNNING
	case model.ContainerExited:
		return api.ContainerState_EXITED
	}
	return api.ContainerState_UNKNOWN
}

// nanoseconds since 1970; nil for a time that has not come. The interface names no unit; later versions of it say
// this one.
func nanoseconds(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	return proto.Int64(t.UnixNano())
}
