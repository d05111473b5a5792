package berthv1

import (
	"cmp"
	"context"
	"slices"

	api "berth/api/berth/v1"
)

// Usage tells of the layers of all images.
func (s *service) Usage(ctx context.Context, _ *api.UsageRequest) (*api.UsageResponse, error) {
	images, err := s.images.List(ctx)
	if err != nil {
		return nil, err
	}
	resp := &api.UsageResponse{}
	for _, image := range images {
		one := &api.ImageUsage{Id: image.ID, ArtifactType: image.Artifact}
		if !image.Pulled.IsZero() {
			one.PulledAt, one.PullTook = image.Pulled.UnixNano(), int64(image.PullTook)
		}
		for _, layer := range s.images.LayerUsage(image.ID) {
			one.Layers = append(one.Layers, &api.LayerUsage{Key: layer.Key, Bytes: layer.Bytes})
		}
		resp.Images = append(resp.Images, one)
	}
	slices.SortFunc(resp.Images, func(a, b *api.ImageUsage) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return resp, nil
}
