package berthv1

import (
	"google.golang.org/grpc"

	api "berth/api/berth/v1"
)

// Deps are the parts of berthd that this API calls.
type Deps struct {
	Images     Images
	Archive    Archive
	Containers Containers
	Streams    Streams
	Devices    Devices // nil: the node has no device manager
	Volumes    Volumes
	Audit      Audit
}

// Register adds the services to a server.
func Register(server grpc.ServiceRegistrar, deps Deps) {
	api.RegisterImagesServer(server, &service{images: deps.Images, archive: deps.Archive})
	api.RegisterContainersServer(server, &containers{containers: deps.Containers, streams: deps.Streams})
	api.RegisterDevicesServer(server, &devices{manager: deps.Devices})
	api.RegisterAuditServer(server, &auditService{audit: deps.Audit})
	api.RegisterVolumesServer(server, &volumeService{volumes: deps.Volumes})
}
