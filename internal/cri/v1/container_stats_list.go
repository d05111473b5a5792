package v1

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ListContainerStats(ctx context.Context, req *api.ListContainerStatsRequest) (
	*api.ListContainerStatsResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.Runtime.ListContainerUsage(ctx, toContainerStatsFilter(req.GetFilter()))
	if err != nil {
		return nil, err
	}
	resp := &api.ListContainerStatsResponse{Stats: make([]*api.ContainerStats, 0, len(list))}
	for _, u := range list {
		resp.Stats = append(resp.Stats, fromContainerUsage(u))
	}
	return resp, nil
}

func (s *runtimeService) StreamContainerStats(req *api.StreamContainerStatsRequest,
	out grpc.ServerStreamingServer[api.StreamContainerStatsResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.Runtime.ListContainerUsage(out.Context(), toContainerStatsFilter(req.GetFilter()))
	if err != nil {
		return err
	}
	id := func(u *model.ContainerUsage) string { return u.Container.ID }
	return sendFigures(s.Log, list, id, fromContainerUsage, func(batch []*api.ContainerStats) error {
		return out.Send(&api.StreamContainerStatsResponse{ContainerStats: batch})
	})
}

func toContainerStatsFilter(f *api.ContainerStatsFilter) model.ContainerFilter {
	return model.ContainerFilter{ID: f.GetId(), SandboxID: f.GetPodSandboxId(), Labels: maps.Clone(f.GetLabelSelector())}
}
