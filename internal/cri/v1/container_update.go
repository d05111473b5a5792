package v1

import (
	"context"
	"maps"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) UpdateContainerResources(ctx context.Context, req *api.UpdateContainerResourcesRequest) (
	*api.UpdateContainerResourcesResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	resources := toResources(c, "linux", req.GetLinux())
	if resources == nil {
		c.Fail("linux", "is required")
	}
	c.Keys("annotations", req.GetAnnotations())
	if err := c.Err(); err != nil {
		return nil, err
	}
	annotations := maps.Clone(req.Annotations)
	if err := s.Runtime.UpdateContainerResources(ctx, req.ContainerId, resources, annotations); err != nil {
		return nil, err
	}
	return &api.UpdateContainerResourcesResponse{}, nil
}
