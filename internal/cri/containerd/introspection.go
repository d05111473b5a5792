package containerd

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/filters"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
)

// apiVersion is the release of containerd whose API this is. Agents compare it with the release that they need; what
// follows it says who answers.
const apiVersion = "v2.3.4"

type versionService struct {
	version.UnimplementedVersionServer
	api *API
}

// Version names the API's release and, as build metadata of it, Berth's.
func (s *versionService) Version(context.Context, *emptypb.Empty) (*version.VersionResponse, error) {
	return &version.VersionResponse{Version: Version(s.api.Deps.Version), Revision: "berth"}, nil
}

// Version is what a Berth of this version says of itself. A semantic version has one + at most.
func Version(berth string) string {
	return apiVersion + "+berth." + strings.ReplaceAll(berth, "+", ".")
}

type introspectionService struct {
	introspection.UnimplementedIntrospectionServer
	api *API
}

// Server says which process answers.
func (s *introspectionService) Server(context.Context, *emptypb.Empty) (*introspection.ServerResponse, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return nil, fmt.Errorf("the PID namespace of berthd: %w", err)
	}
	return &introspection.ServerResponse{UUID: s.api.UUID, Pid: uint64(os.Getpid()), Pidns: st.Ino}, nil
}

// Plugins are the services that are answered, as containerd names them.
func (s *introspectionService) Plugins(
	_ context.Context, req *introspection.PluginsRequest,
) (*introspection.PluginsResponse, error) {
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return nil, err
	}
	resp := &introspection.PluginsResponse{}
	add := func(kind, id string) {
		p := &introspection.Plugin{
			Type: kind, ID: id, Platforms: []*types.Platform{{OS: "linux", Architecture: runtime.GOARCH}},
		}
		if filter.Match(fields{"type": p.Type, "id": p.ID}) {
			resp.Plugins = append(resp.Plugins, p)
		}
	}
	for _, service := range s.api.services() {
		if service.of != nil {
			add("io.containerd.grpc.v1", service.name)
		}
	}
	add("io.containerd.grpc.v1", "healthcheck")
	add("io.containerd.grpc.v1", "cri")
	return resp, nil
}

// leaseService says that there are no leases: Berth holds what is in use by other means.
type leaseService struct {
	leases.UnimplementedLeasesServer
}

// List is empty.
func (*leaseService) List(context.Context, *leases.ListRequest) (*leases.ListResponse, error) {
	return &leases.ListResponse{}, nil
}
