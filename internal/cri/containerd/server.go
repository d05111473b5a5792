package containerd

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	mountsapi "github.com/containerd/containerd/api/services/mounts/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"

	"berth/internal/model"
)

// Runtime has the calls of the domain that this API uses. Errors wrap the sentinels of github.com/containerd/errdefs.
type Runtime interface {
	SandboxStatus(ctx context.Context, id string) (*model.SandboxStatus, error)
	ListSandboxes(ctx context.Context, filter model.SandboxFilter) ([]*model.SandboxStatus, error)
	ContainerStatus(ctx context.Context, id string) (*model.ContainerStatus, error)
	ListContainers(ctx context.Context, filter model.ContainerFilter) ([]*model.ContainerStatus, error)
	// Subscribe follows events until ctx ends. The channel is closed earlier when the reader is too far behind.
	Subscribe(ctx context.Context) <-chan model.ContainerEvent

	// ContainerSpec is the OCI specification of a container as JSON, with the changes since it was made.
	ContainerSpec(ctx context.Context, id string) ([]byte, error)
	// ContainerProcesses are the IDs of the processes in a container's cgroup, as the node has them.
	ContainerProcesses(ctx context.Context, id string) ([]int, error)
	// CgroupFigures are what the cgroups of containers that run, and of sandboxes, say, in the order of their IDs. nil:
	// it does not run, has no cgroup, or is gone.
	CgroupFigures(ctx context.Context, ids []string) []*model.CgroupFigures
	// SandboxCgroup is the cgroup that RenewSandboxCgroup makes, as a specification's cgroupsPath.
	SandboxCgroup(ctx context.Context, id string) (string, error)
	// RenewSandboxCgroup makes an empty cgroup with a pod's ID in its name beside those of the pod's containers, and
	// makes it anew where it is there. It goes when the pod stops.
	RenewSandboxCgroup(ctx context.Context, id string) error
	// RemoveSandboxCgroup removes it.
	RemoveSandboxCgroup(ctx context.Context, id string) error
}

// Images has the calls of the image store that this API uses.
type Images interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error) // errdefs.ErrNotFound
	List(ctx context.Context) ([]*model.Image, error)
	Document(digest string) ([]byte, error) // a manifest or a configuration
	// Subscribe follows the names of images until ctx ends. The channel is closed earlier when the reader is too far
	// behind.
	Subscribe(ctx context.Context) <-chan model.ImageEvent
}

// Deps are the parts of berthd that this API calls. All fields are required but Log.
type Deps struct {
	Runtime Runtime
	Images  Images
	Version string // of Berth
	UUID    string // of this node's Berth
	Log     *slog.Logger
}

// API is the part of containerd's API that is answered.
type API struct {
	Deps
	sandboxes *sandboxCgroups
	follow    sync.Once
	ctx       context.Context // ends with Close
	stop      context.CancelFunc
	work      sync.WaitGroup
}

// New makes the API. Close ends what it does in the background.
func New(deps Deps) *API {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	a := &API{Deps: deps, sandboxes: newSandboxCgroups(deps.Runtime, deps.Log)}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// Close ends what the API does in the background. The server has stopped by then.
func (a *API) Close() error {
	a.stop()
	a.work.Wait()
	return nil
}

// Register adds the services to a server, whose interceptors give errors their codes (package cri).
func (a *API) Register(server grpc.ServiceRegistrar) {
	for _, service := range a.services() {
		if service.of == nil {
			server.RegisterService(readOnly(service.desc), nil)
			continue
		}
		server.RegisterService(readOnly(service.desc, service.calls...), service.of)
	}
	healthapi.RegisterHealthServer(server, health.NewServer())
}

// gRPC finds out only when the daemon starts.
var (
	_ containersapi.ContainersServer       = (*containerService)(nil)
	_ contentapi.ContentServer             = (*contentService)(nil)
	_ eventsapi.EventsServer               = (*eventService)(nil)
	_ imagesapi.ImagesServer               = (*imageService)(nil)
	_ introspectionapi.IntrospectionServer = (*introspectionService)(nil)
	_ leasesapi.LeasesServer               = (*leaseService)(nil)
	_ namespacesapi.NamespacesServer       = (*namespaceService)(nil)
	_ tasksapi.TasksServer                 = (*taskService)(nil)
	_ versionapi.VersionServer             = (*versionService)(nil)
)

// service is a gRPC service, with its calls that are answered.
type service struct {
	name  string // of containerd's plugin
	desc  *grpc.ServiceDesc
	of    any // nil: all of its calls are refused
	calls []string
}

// services are all of containerd's, so that a call that is not answered gets an error that says why.
func (a *API) services() []service {
	return []service{
		{"containers", &containersapi.Containers_ServiceDesc, &containerService{api: a},
			[]string{"Get", "List", "ListStream"}},
		{"content", &contentapi.Content_ServiceDesc, &contentService{api: a},
			[]string{"Info", "Read", "List", "ListStatuses"}},
		{"events", &eventsapi.Events_ServiceDesc, &eventService{api: a}, []string{"Subscribe"}},
		{"images", &imagesapi.Images_ServiceDesc, &imageService{api: a}, []string{"Get", "List"}},
		{"introspection", &introspectionapi.Introspection_ServiceDesc, &introspectionService{api: a},
			[]string{"Plugins", "Server"}},
		{"leases", &leasesapi.Leases_ServiceDesc, &leaseService{}, []string{"List"}},
		{"namespaces", &namespacesapi.Namespaces_ServiceDesc, &namespaceService{}, []string{"Get", "List"}},
		{"tasks", &tasksapi.Tasks_ServiceDesc, &taskService{api: a}, []string{"Get", "List", "ListPids", "Metrics"}},
		{"version", &versionapi.Version_ServiceDesc, &versionService{api: a}, []string{"Version"}},

		{name: "diff", desc: &diffapi.Diff_ServiceDesc},
		{name: "mounts", desc: &mountsapi.Mounts_ServiceDesc},
		{name: "sandboxes", desc: &sandboxapi.Store_ServiceDesc},
		{name: "sandbox-controllers", desc: &sandboxapi.Controller_ServiceDesc},
		{name: "snapshots", desc: &snapshotsapi.Snapshots_ServiceDesc},
		{name: "streaming", desc: &streamingapi.Streaming_ServiceDesc},
		{name: "transfer", desc: &transferapi.Transfer_ServiceDesc},
	}
}
