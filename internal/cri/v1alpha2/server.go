package v1alpha2

import (
	"context"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	criv1 "berth/internal/cri/v1"
)

// Extensions has the calls of the domain that the calls of PouchContainer use. IDs may be unique prefixes.
type Extensions interface {
	// StartSandbox brings back a sandbox that stopped by accident; another is errdefs.ErrFailedPrecondition.
	StartSandbox(ctx context.Context, id string) error
	PauseContainer(ctx context.Context, id string) error
	UnpauseContainer(ctx context.Context, id string) error
}

// Volumes is the node's store of named volumes.
type Volumes interface {
	// RemoveVolume removes a named volume; one that a container uses is errdefs.ErrFailedPrecondition.
	RemoveVolume(ctx context.Context, name string) error
}

// Register adds the services runtime.v1alpha2.RuntimeService, ImageService and VolumeService to a server.
// Where volumes is nil, the node has no store of them, and VolumeService is not there.
func Register(r grpc.ServiceRegistrar, deps criv1.Deps, ext Extensions, volumes Volumes) {
	services := criv1.NewServices(deps, dialect{})
	runtime := renamed(api.RuntimeService_ServiceDesc, pouch.RuntimeService_ServiceDesc.ServiceName)
	runtime.Methods = append(runtime.Methods, pouch.RuntimeService_ServiceDesc.Methods...)
	runtime.HandlerType = (*runtimeServer)(nil)
	r.RegisterService(&runtime, &runtimeService{RuntimeServiceServer: services.Runtime, ext: ext})
	image := renamed(api.ImageService_ServiceDesc, imageService)
	r.RegisterService(&image, services.Image)
	if volumes != nil {
		pouch.RegisterVolumeServiceServer(r, &volumeService{volumes: volumes})
	}
}

const imageService = "runtime.v1alpha2.ImageService"

// runtimeServer has v1's calls and PouchContainer's.
type runtimeServer interface {
	api.RuntimeServiceServer
	pouch.RuntimeServiceServer
}

type runtimeService struct {
	api.RuntimeServiceServer
	pouch.UnimplementedRuntimeServiceServer
	ext Extensions
}

type volumeService struct {
	pouch.UnimplementedVolumeServiceServer
	volumes Volumes
}
