package containerd

import (
	"context"
	"fmt"

	api "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
)

// namespace is where all of Berth's containers and images are: the CRI's, in containerd.
const namespace = "k8s.io"

// inNamespace tells whether a request is for the namespace that has anything in it. All other namespaces are empty. A
// request that names no namespace is an error, as in containerd.
func inNamespace(ctx context.Context) (bool, error) {
	name, err := namespaces.NamespaceRequired(ctx)
	return name == namespace, err
}

// namespaceService answers containerd.services.namespaces.v1.
type namespaceService struct {
	api.UnimplementedNamespacesServer
}

// Get answers for the one namespace that there is.
func (*namespaceService) Get(_ context.Context, req *api.GetNamespaceRequest) (*api.GetNamespaceResponse, error) {
	if req.Name != namespace {
		return nil, fmt.Errorf("namespace %q: %w", req.Name, errdefs.ErrNotFound)
	}
	return &api.GetNamespaceResponse{Namespace: &api.Namespace{Name: namespace}}, nil
}

// List answers with the one namespace that there is.
func (*namespaceService) List(context.Context, *api.ListNamespacesRequest) (*api.ListNamespacesResponse, error) {
	return &api.ListNamespacesResponse{Namespaces: []*api.Namespace{{Name: namespace}}}, nil
}
