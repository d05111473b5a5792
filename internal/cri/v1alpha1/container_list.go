package v1alpha1

import (
	"context"
	"maps"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (s *runtimeService) ListContainers(ctx context.Context,
	req *api.ListContainersRequest) (*api.ListContainersResponse, error) {
	if err := newCheck(req).Err(); err != nil {
		return nil, err
	}
	f := req.GetFilter()
	list, err := s.Runtime.ListContainers(ctx, model.ContainerFilter{
		ID: f.GetId(), SandboxID: f.GetPodSandboxId(), Labels: maps.Clone(f.GetLabelSelector()),
	})
	if err != nil {
		return nil, err
	}
	resp := &api.ListContainersResponse{}
	for _, st := range list {
		item := &api.Container{
			Id:       proto.String(st.ID),
			Name:     proto.String(st.Config.Named()),
			Image:    containerImage(st),
			ImageRef: proto.String(st.ImageID),
			State:    fromContainerState(st.State).Enum(),
			Labels:   st.Config.Labels,
		}
		// CREATED is 0: only its presence tells a filter for it from none.
		if f != nil && (f.State != nil && *f.State != *item.State || f.Name != nil && *f.Name != *item.Name) {
			continue
		}
		resp.Containers = append(resp.Containers, item)
	}
	return resp, nil
}
