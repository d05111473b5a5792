package listing

import (
	"context"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// Reading is one reading of the pods and containers of a runtime. It asks for the status of a container once, however
// many of its lists need it. It is for one goroutine.
type Reading struct {
	conn       *connection.Connection
	pods       []*cri.PodSandbox
	containers []*lookup.Container
	statuses   map[string]*cri.ContainerStatus // nil: the container was removed meanwhile
}

// Read lists the pods and containers of a runtime.
func Read(ctx context.Context, conn *connection.Connection) (*Reading, error) {
	r := &Reading{conn: conn, statuses: map[string]*cri.ContainerStatus{}}
	var err error
	if r.pods, err = lookup.Pods(ctx, conn.Runtime); err != nil {
		return nil, err
	}
	if r.containers, err = lookup.Containers(ctx, conn.Runtime, nil); err != nil {
		return nil, err
	}
	return r, nil
}

// Status is the status of a container; nil: it was removed since it was listed.
func (r *Reading) Status(ctx context.Context, id string) (*cri.ContainerStatus, error) {
	if known, ok := r.statuses[id]; ok {
		return known, nil
	}
	response, err := r.conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil && !gone(err) {
		return nil, connection.Plain(err)
	}
	r.statuses[id] = response.GetStatus()
	return r.statuses[id], nil
}

// gone says whether what was asked for went away since it was listed.
func gone(err error) bool { return connection.Code(err) == codes.NotFound }
