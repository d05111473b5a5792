package v1

import (
	"context"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *imageService) RemoveImage(ctx context.Context, req *api.RemoveImageRequest) (*api.RemoveImageResponse, error) {
	c := newCheck(s.dialect, req)
	spec := toImageSpec(c, "image", req.GetImage())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Images.Remove(ctx, spec.Image); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &api.RemoveImageResponse{}, nil
}
