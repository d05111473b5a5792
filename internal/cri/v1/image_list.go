package v1

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *imageService) ListImages(ctx context.Context, req *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.list(ctx, req.GetFilter().GetImage().GetImage())
	if err != nil {
		return nil, err
	}
	resp := &api.ListImagesResponse{Images: make([]*api.Image, 0, len(list))}
	for _, img := range list {
		resp.Images = append(resp.Images, fromImage(s.dialect, img))
	}
	return resp, nil
}

func (s *imageService) StreamImages(req *api.StreamImagesRequest,
	out grpc.ServerStreamingServer[api.StreamImagesResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.list(out.Context(), req.GetFilter().GetImage().GetImage())
	if err != nil {
		return err
	}
	return sendAll(list, func(img *model.Image) *api.Image {
		return fromImage(s.dialect, img)
	}, func(batch []*api.Image) error {
		return out.Send(&api.StreamImagesResponse{Images: batch})
	})
}

// list returns all images, or the one that a filter names, if it is there.
func (s *imageService) list(ctx context.Context, name string) ([]*model.Image, error) {
	if name == "" {
		return s.Images.List(ctx)
	}
	img, err := s.Images.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []*model.Image{img}, nil
}
