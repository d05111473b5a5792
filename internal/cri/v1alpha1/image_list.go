package v1alpha1

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (s *imageService) ListImages(ctx context.Context, req *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	if err := newCheck(req).Err(); err != nil {
		return nil, err
	}
	resp := &api.ListImagesResponse{}
	if name := req.GetFilter().GetImage().GetImage(); name != "" {
		img, err := s.Images.Get(ctx, name)
		if errdefs.IsNotFound(err) {
			return resp, nil
		}
		if err != nil {
			return nil, err
		}
		resp.Images = append(resp.Images, fromImage(img))
		return resp, nil
	}
	list, err := s.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, img := range list {
		resp.Images = append(resp.Images, fromImage(img))
	}
	return resp, nil
}

func fromImage(img *model.Image) *api.Image {
	return &api.Image{
		Id:          proto.String(img.ID),
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        proto.Uint64(img.Size),
	}
}
