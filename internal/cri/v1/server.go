package v1

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
	"berth/internal/pod"
	"berth/internal/stream"
)

// Runtime has the calls of the domain that this API uses. IDs may be unique prefixes. Errors wrap the sentinels of
// github.com/containerd/errdefs.
type Runtime interface {
	RunSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string) (id string, err error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	SandboxStatus(ctx context.Context, id string) (*model.SandboxStatus, error)
	// SandboxInfo has values for JSON by name, of which config is a *model.SandboxConfig.
	SandboxInfo(ctx context.Context, id string) (map[string]any, error)
	ListSandboxes(ctx context.Context, filter model.SandboxFilter) ([]*model.SandboxStatus, error)

	// CheckpointSandbox writes running containers of a pod to an empty directory at an absolute path.
	CheckpointSandbox(ctx context.Context, id, dir string, containers []string) error
	// RestoreSandbox makes a pod and its created containers of such a directory, and returns the containers' IDs in the
	// order of their configurations.
	RestoreSandbox(ctx context.Context, dir string, cfg *model.SandboxConfig, handler string,
		containers []*model.ContainerConfig) (id string, ids []string, err error)

	UpdateSandboxResources(ctx context.Context, id string, overhead, resources *model.Resources) error

	CreateContainer(ctx context.Context, sandboxID string, cfg *model.ContainerConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, timeout time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	ContainerStatus(ctx context.Context, id string) (*model.ContainerStatus, error)
	// ContainerInfo has values for JSON by name, of which config is a *model.ContainerConfig.
	ContainerInfo(ctx context.Context, id string) (map[string]any, error)
	ListContainers(ctx context.Context, filter model.ContainerFilter) ([]*model.ContainerStatus, error)
	UpdateContainerResources(ctx context.Context, id string, r *model.Resources, annotations map[string]string) error
	ReopenContainerLog(ctx context.Context, id string) error
	// CheckpointContainer writes a running container to an archive at an absolute path. Timeout 0 is the domain's own.
	CheckpointContainer(ctx context.Context, id, location string, timeout time.Duration) error
	// ExecSync runs a command to its end, or kills it after timeout (0: none) and returns context.DeadlineExceeded.
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int,
		err error)

	ContainerUsage(ctx context.Context, id string) (*model.ContainerUsage, error)
	ListContainerUsage(ctx context.Context, filter model.ContainerFilter) ([]*model.ContainerUsage, error)
	SandboxUsage(ctx context.Context, id string) (*model.SandboxUsage, error)
	ListSandboxUsage(ctx context.Context, filter model.SandboxFilter) ([]*model.SandboxUsage, error)

	MetricDescriptors() []model.MetricDescriptor // static
	ListSandboxMetrics(ctx context.Context) ([]model.SandboxMetrics, error)

	// Subscribe follows events until ctx ends. The channel is closed earlier when the reader is too far behind.
	Subscribe(ctx context.Context) <-chan model.ContainerEvent

	Conditions(ctx context.Context) []pod.Condition
	Handlers() []pod.HandlerInfo
	SetPodCIDR(ctx context.Context, cidr string) error
	CgroupDriver() string // cgroupfs or systemd
}

// Images has the calls of the image store that this API uses.
type Images interface {
	PullImage(ctx context.Context, spec model.ImageSpec, auth *model.Auth) (*model.Image, error)
	Get(ctx context.Context, refOrID string) (*model.Image, error) // errdefs.ErrNotFound
	List(ctx context.Context) ([]*model.Image, error)
	Remove(ctx context.Context, refOrID string) error // an absent image is no error
	Usage(ctx context.Context) (model.FilesystemUsage, error)
	ConfigJSON(imageID string) ([]byte, error) // the image's configuration as it was pulled
	Manifest(imageID string) ([]byte, error)   // as it was pulled
}

// Streams makes the single-use addresses at which clients exec, attach and forward ports.
type Streams interface {
	GetExec(context.Context, stream.ExecRequest) (url string, err error)
	GetAttach(context.Context, stream.AttachRequest) (url string, err error)
	GetPortForward(context.Context, stream.PortForwardRequest) (url string, err error)
}

// Deps is everything that the API calls. All fields are required but CreateHostPaths, Info and Log.
type Deps struct {
	Runtime Runtime
	Images  Images
	Streams Streams
	Version string // of Berth, semver
	// Name and NameVersion are what the call Version tells. Empty: "berth" and Version.
	Name, NameVersion string
	// CreateHostPaths has a directory made where the host path of a container's mount does not exist, if it says so.
	CreateHostPaths func() bool
	// Info is what Status tells beyond its fields when it is asked to be verbose (the configuration, the keeper's
	// version): each value is given as JSON.
	Info func(context.Context) map[string]any
	Log  *slog.Logger
}

// Register adds the services runtime.v1.RuntimeService and runtime.v1.ImageService to a server. Handlers return errors
// of errdefs: the server's interceptors give them their codes (package cri).
func Register(r grpc.ServiceRegistrar, deps Deps) {
	services := NewServices(deps, V1{})
	api.RegisterRuntimeServiceServer(r, services.Runtime)
	api.RegisterImageServiceServer(r, services.Image)
}

// Services answer the calls of one dialect.
type Services struct {
	Runtime api.RuntimeServiceServer
	Image   api.ImageServiceServer
}

// NewServices makes the services of a dialect, for an API that gives them names of its own.
func NewServices(deps Deps, d Dialect) Services {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return Services{Runtime: &runtimeService{Deps: deps, dialect: d}, Image: &imageService{Deps: deps, dialect: d}}
}

// runtimeService answers the calls that this package has a file for; the rest is Unimplemented.
type runtimeService struct {
	api.UnimplementedRuntimeServiceServer
	Deps
	dialect Dialect
}

type imageService struct {
	api.UnimplementedImageServiceServer
	Deps
	dialect Dialect
}
