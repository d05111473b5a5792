package v1

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// Dialect is a version of the interface that has v1's messages and says more, or other things, in some of them. What it
// adds arrives in the unknown fields of the messages. Read methods complete what v1's fields were translated to,
// and note in c what is wrong with the message at p; Write methods complete answers, of which they own nothing
// but the message's own fields.
type Dialect interface {
	// Version is what VersionResponse.runtime_api_version says.
	Version() string
	// Enum tells whether the dialect names a value that v1 does not.
	Enum(enum protoreflect.Name, value protoreflect.EnumNumber) bool
	// State is a container's state on the wire, and States are those that a filter with that value selects.
	State(model.ContainerState) api.ContainerState
	States(api.ContainerState) []model.ContainerState
	// Handler is the runtime handler of a pod that asks for this one.
	Handler(in *api.PodSandboxConfig, asked string) string

	ReadSandbox(c *request.Check, p request.Path, in *api.PodSandboxConfig, out *model.SandboxConfig)
	ReadContainer(c *request.Check, p request.Path, in *api.ContainerConfig, out *model.ContainerConfig)
	ReadImageSpec(c *request.Check, p request.Path, in *api.ImageSpec, out *model.ImageSpec)
	ReadMount(c *request.Check, p request.Path, in *api.Mount, out *model.Mount)
	ReadResources(c *request.Check, p request.Path, in *api.LinuxContainerResources, out *model.Resources)

	WriteContainerStatus(in *model.ContainerStatus, out *api.ContainerStatus)
	WriteImage(in *model.Image, out *api.Image)
	WriteImageSpec(in *model.ImageSpec, out *api.ImageSpec)
	WriteMount(in *model.Mount, out *api.Mount)
}

// V1 is the interface as it is: nothing is added. Other dialects embed it.
type V1 struct{}

var _ Dialect = V1{}

// Version is v1.
func (V1) Version() string { return "v1" }

// Enum is false: v1's own values are known without it.
func (V1) Enum(protoreflect.Name, protoreflect.EnumNumber) bool { return false }

// State calls a paused container running: v1 has no word for it, and its processes are there.
func (V1) State(s model.ContainerState) api.ContainerState {
	switch s {
	case model.ContainerCreated:
		return api.ContainerState_CONTAINER_CREATED
	case model.ContainerRunning, model.ContainerPaused:
		return api.ContainerState_CONTAINER_RUNNING
	case model.ContainerExited:
		return api.ContainerState_CONTAINER_EXITED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

// States is the reverse of State.
func (d V1) States(s api.ContainerState) []model.ContainerState {
	var out []model.ContainerState
	for _, state := range []model.ContainerState{model.ContainerCreated, model.ContainerRunning, model.ContainerPaused,
		model.ContainerExited, model.ContainerUnknown} {
		if d.State(state) == s {
			out = append(out, state)
		}
	}
	return out
}

// Handler is the one that is asked for.
func (V1) Handler(_ *api.PodSandboxConfig, asked string) string { return asked }

// ReadSandbox adds nothing.
func (V1) ReadSandbox(*request.Check, request.Path, *api.PodSandboxConfig, *model.SandboxConfig) {}

// ReadContainer adds nothing.
func (V1) ReadContainer(*request.Check, request.Path, *api.ContainerConfig, *model.ContainerConfig) {}

// ReadImageSpec adds nothing.
func (V1) ReadImageSpec(*request.Check, request.Path, *api.ImageSpec, *model.ImageSpec) {}

// ReadMount adds nothing.
func (V1) ReadMount(*request.Check, request.Path, *api.Mount, *model.Mount) {}

// ReadResources adds nothing.
func (V1) ReadResources(*request.Check, request.Path, *api.LinuxContainerResources, *model.Resources) {
}

// WriteContainerStatus adds nothing.
func (V1) WriteContainerStatus(*model.ContainerStatus, *api.ContainerStatus) {}

// WriteImage adds nothing.
func (V1) WriteImage(*model.Image, *api.Image) {}

// WriteImageSpec adds nothing.
func (V1) WriteImageSpec(*model.ImageSpec, *api.ImageSpec) {}

// WriteMount adds nothing.
func (V1) WriteMount(*model.Mount, *api.Mount) {}
