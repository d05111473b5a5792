package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/model"
)

// PullImage answers with the image's ID: the interface wants the same value here as in Image.id. The credentials of the
// request go to the image store and nowhere else.
func (s *imageService) PullImage(ctx context.Context, req *api.PullImageRequest) (*api.PullImageResponse, error) {
	c := newCheck(s.dialect, req)
	spec := toImageSpec(c, "image", req.GetImage())
	if pod := req.GetSandboxConfig(); pod.GetMetadata() != nil { // an image is the node's: it says nothing of it
		toSandboxConfig(c, "sandbox_config", pod)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	img, err := s.Images.PullImage(ctx, spec, toAuth(req.Auth))
	if err != nil {
		return nil, &cri.PullError{Err: err}
	}
	return &api.PullImageResponse{ImageRef: img.ID}, nil
}

func toAuth(a *api.AuthConfig) *model.Auth {
	if a == nil {
		return nil
	}
	return &model.Auth{
		Username:      a.Username,
		Password:      a.Password,
		Auth:          a.Auth,
		ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken,
		RegistryToken: a.RegistryToken,
	}
}
