package v1

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ListPodSandboxStats(ctx context.Context, req *api.ListPodSandboxStatsRequest) (
	*api.ListPodSandboxStatsResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.Runtime.ListSandboxUsage(ctx, toSandboxStatsFilter(req.GetFilter()))
	if err != nil {
		return nil, err
	}
	resp := &api.ListPodSandboxStatsResponse{Stats: make([]*api.PodSandboxStats, 0, len(list))}
	for _, u := range list {
		resp.Stats = append(resp.Stats, fromSandboxUsage(u))
	}
	return resp, nil
}

func (s *runtimeService) StreamPodSandboxStats(req *api.StreamPodSandboxStatsRequest,
	out grpc.ServerStreamingServer[api.StreamPodSandboxStatsResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.Runtime.ListSandboxUsage(out.Context(), toSandboxStatsFilter(req.GetFilter()))
	if err != nil {
		return err
	}
	id := func(u *model.SandboxUsage) string { return u.Sandbox.ID }
	return sendFigures(s.Log, list, id, fromSandboxUsage, func(batch []*api.PodSandboxStats) error {
		return out.Send(&api.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}

func toSandboxStatsFilter(f *api.PodSandboxStatsFilter) model.SandboxFilter {
	return model.SandboxFilter{ID: f.GetId(), Labels: maps.Clone(f.GetLabelSelector())}
}
