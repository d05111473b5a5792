package v1

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ListPodSandbox(ctx context.Context,
	req *api.ListPodSandboxRequest) (*api.ListPodSandboxResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.sandboxes(ctx, req.GetFilter())
	if err != nil {
		return nil, err
	}
	resp := &api.ListPodSandboxResponse{Items: make([]*api.PodSandbox, 0, len(list))}
	for _, st := range list {
		resp.Items = append(resp.Items, fromSandbox(st))
	}
	return resp, nil
}

func (s *runtimeService) StreamPodSandboxes(req *api.StreamPodSandboxesRequest,
	out grpc.ServerStreamingServer[api.StreamPodSandboxesResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.sandboxes(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendAll(list, fromSandbox, func(batch []*api.PodSandbox) error {
		return out.Send(&api.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}

// sandboxes are those that a filter selects. A dialect may name states that no sandbox is in: they select none.
func (s *runtimeService) sandboxes(ctx context.Context, f *api.PodSandboxFilter) ([]*model.SandboxStatus, error) {
	filter := model.SandboxFilter{ID: f.GetId(), Labels: maps.Clone(f.GetLabelSelector())}
	if value := f.GetState(); value != nil {
		state, known := sandboxStates[value.State]
		if !known {
			return nil, nil
		}
		filter.State = state
	}
	return s.Runtime.ListSandboxes(ctx, filter)
}

func fromSandbox(st *model.SandboxStatus) *api.PodSandbox {
	cfg := sandboxConfig(st)
	return &api.PodSandbox{
		Id:             st.ID,
		Metadata:       fromSandboxMetadata(cfg.Metadata),
		State:          fromSandboxState(st.State),
		CreatedAt:      nanoseconds(st.CreatedAt),
		Labels:         cfg.Labels,
		Annotations:    cfg.Annotations,
		RuntimeHandler: st.RuntimeHandler,
	}
}
