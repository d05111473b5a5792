package v1alpha1

import (
	"context"
	"time"

	"google.golang.org/grpc"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/cri/request"
	"berth/internal/model"
	"berth/internal/pod"
)

type (
	path  = request.Path
	check = request.Check
)

var newCheck = request.New

// Runtime has the calls of the domain that this API uses. IDs may be unique prefixes. Errors wrap the sentinels of
// github.com/containerd/errdefs.
type Runtime interface {
	RunSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string) (id string, err error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	SandboxStatus(ctx context.Context, id string) (*model.SandboxStatus, error)
	ListSandboxes(ctx context.Context, filter model.SandboxFilter) ([]*model.SandboxStatus, error)

	CreateContainer(ctx context.Context, sandboxID string, cfg *model.ContainerConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, timeout time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	ContainerStatus(ctx context.Context, id string) (*model.ContainerStatus, error)
	ListContainers(ctx context.Context, filter model.ContainerFilter) ([]*model.ContainerStatus, error)
	// Exec runs a command and returns its exit code. When ctx ends, the command is killed.
	Exec(ctx context.Context, id string, opts pod.ExecOptions) (exitCode int, err error)
}

// Images has the calls of the image store that this API uses.
type Images interface {
	PullImage(ctx context.Context, spec model.ImageSpec, auth *model.Auth) (*model.Image, error)
	Get(ctx context.Context, refOrID string) (*model.Image, error) // errdefs.ErrNotFound
	List(ctx context.Context) ([]*model.Image, error)
	Remove(ctx context.Context, refOrID string) error // an absent image is no error
}

// Deps is everything that the API calls. All fields are required.
type Deps struct {
	Runtime Runtime
	Images  Images
	Version string // of Berth, semver
	// Name and NameVersion are what the call Version tells. Empty: "berth" and Version.
	Name, NameVersion string
	// CreateHostPaths has a directory made where the host path of a container's mount does not exist, if it says so.
	CreateHostPaths func() bool
}

// Register adds the services to a server. Handlers return errors of errdefs: the server's interceptors give them
// their codes (package cri).
func Register(r grpc.ServiceRegistrar, deps Deps) {
	api.RegisterRuntimeServiceServer(r, &runtimeService{Deps: deps})
	api.RegisterImageServiceServer(r, &imageService{Deps: deps})
}

type runtimeService struct {
	api.UnimplementedRuntimeServiceServer
	Deps
}

type imageService struct {
	api.UnimplementedImageServiceServer
	Deps
}
