package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

// PullImage gives the credentials of the request to the image store and to nobody else.
func (s *imageService) PullImage(ctx context.Context, req *api.PullImageRequest) (*api.PullImageResponse, error) {
	c := newCheck(req)
	spec := toImageSpec(c, "image", req.GetImage())
	repeated(c, req.GetSandboxConfig()) // an image is the node's
	if err := c.Err(); err != nil {
		return nil, err
	}
	var auth *model.Auth
	if a := req.GetAuth(); a != nil {
		auth = &model.Auth{
			Username:      a.GetUsername(),
			Password:      a.GetPassword(),
			Auth:          a.GetAuth(),
			ServerAddress: a.GetServerAddress(),
			IdentityToken: a.GetIdentityToken(),
			RegistryToken: a.GetRegistryToken(),
		}
	}
	if _, err := s.Images.PullImage(ctx, spec, auth); err != nil {
		return nil, err
	}
	return &api.PullImageResponse{}, nil
}
