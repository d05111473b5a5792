package nri

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

// Pod is a pod as plugins see it.
type Pod struct {
	*model.SandboxStatus
	CgroupParent string // as its client has asked for
	CgroupsPath  string // the pod's own, below the cgroup mounts
	Namespaces   []specs.LinuxNamespace
}

// Container is a container as plugins see it. Create writes to Spec, the others do not.
type Container struct {
	*model.ContainerStatus
	Spec *specs.Spec
}

// Event is something that happens to a pod or a container, of which plugins are told, and which they do not change.
type Event int

const (
	RunPod Event = iota
	PodUpdated
	StopPod
	RemovePod
	ContainerCreated
	StartContainer
	ContainerStarted
	ContainerUpdated
	RemoveContainer
)

// Update is what a plugin wants of a container that exists.
type Update struct {
	ContainerID string
	Resources   *model.Resources // what is zero stays as it is
}

// Node is what plugins learn of and change. Its methods may be called concurrently.
type Node interface {
	// Present are the pods and the containers that have not ended. A plugin that joins is told of them.
	Present() ([]Pod, []Container)
	// Apply changes the limits of a container. ctx bounds how long it waits for what else happens to the container. That
	// there is no such container, or that it has ended, is errdefs.ErrNotFound.
	Apply(ctx context.Context, u Update) error
}

// Means are what the node has for what plugins name.
type Means struct {
	// InjectCDI adds devices to a specification, by their CDI names.
	InjectCDI func(spec *specs.Spec, names []string) error
	// BlockIO returns the weights and limits of a class of block I/O.
	BlockIO func(class string) (*specs.LinuxBlockIO, error)
}
