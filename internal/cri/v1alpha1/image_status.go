package v1alpha1

import (
	"context"

	"github.com/containerd/errdefs"

	api "berth/api/runtime/v1alpha1"
)

func (s *imageService) ImageStatus(ctx context.Context, req *api.ImageStatusRequest) (*api.ImageStatusResponse, error) {
	c := newCheck(req)
	spec := toImageSpec(c, "image", req.GetImage())
	if err := c.Err(); err != nil {
		return nil, err
	}
	img, err := s.Images.Get(ctx, spec.Image)
	if errdefs.IsNotFound(err) {
		return &api.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	return &api.ImageStatusResponse{Image: fromImage(img)}, nil
}
