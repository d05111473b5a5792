package berthv1

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	api "berth/api/berth/v1"
	"berth/internal/model"
)

// Push streams progress while the image is pushed. A client that reads slowly misses events and delays nothing.
func (s *service) Push(req *api.PushRequest, stream grpc.ServerStreamingServer[api.PushEvent]) error {
	if req.GetImage() == "" {
		return fmt.Errorf("image: empty: %w", errdefs.ErrInvalidArgument)
	}
	var pushed *model.Pushed
	err := telling(stream.Context(), func(layer *api.Layer) error {
		return stream.Send(&api.PushEvent{Event: &api.PushEvent_Layer{Layer: layer}})
	}, func(ctx context.Context, progress func(model.PushProgress)) (err error) {
		pushed, err = s.archive.Push(ctx, model.PushRequest{
			Image: req.GetImage(), Name: req.GetName(), Auth: auth(req.GetAuth()), Progress: progress,
		})
		return err
	})
	if err != nil {
		return err
	}
	done := &api.Pushed{Name: pushed.Name, Digest: pushed.Digest}
	return stream.Send(&api.PushEvent{Event: &api.PushEvent_Pushed{Pushed: done}})
}
