package v1alpha1

import (
	"context"
	"maps"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (s *runtimeService) ListPodSandbox(ctx context.Context,
	req *api.ListPodSandboxRequest) (*api.ListPodSandboxResponse, error) {
	if err := newCheck(req).Err(); err != nil {
		return nil, err
	}
	f := req.GetFilter()
	list, err := s.Runtime.ListSandboxes(ctx, model.SandboxFilter{ID: f.GetId(), Labels: maps.Clone(f.GetLabelSelector())})
	if err != nil {
		return nil, err
	}
	resp := &api.ListPodSandboxResponse{}
	for _, st := range list {
		item := &api.PodSandbox{
			Id:        proto.String(st.ID),
			Name:      proto.String(st.Config.Named()),
			State:     fromSandboxState(st.State).Enum(),
			CreatedAt: nanoseconds(st.CreatedAt),
			Labels:    st.Config.Labels,
		}
		// READY is 0: only its presence tells a filter for it from none.
		if f != nil && (f.State != nil && *f.State != *item.State || f.Name != nil && *f.Name != *item.Name) {
			continue
		}
		resp.Items = append(resp.Items, item)
	}
	return resp, nil
}
