package v1

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ListContainers(ctx context.Context, req *api.ListContainersRequest) (*api.ListContainersResponse, error) {
	if err := checkOnly(req); err != nil {
		return nil, err
	}
	list, err := s.Runtime.ListContainers(ctx, toContainerFilter(req.GetFilter()))
	if err != nil {
		return nil, err
	}
	resp := &api.ListContainersResponse{Containers: make([]*api.Container, 0, len(list))}
	for _, st := range list {
		resp.Containers = append(resp.Containers, fromContainer(st))
	}
	return resp, nil
}

func (s *runtimeService) StreamContainers(req *api.StreamContainersRequest,
	out grpc.ServerStreamingServer[api.StreamContainersResponse]) error {
	if err := checkOnly(req); err != nil {
		return err
	}
	list, err := s.Runtime.ListContainers(out.Context(), toContainerFilter(req.GetFilter()))
	if err != nil {
		return err
	}
	return sendAll(list, fromContainer, func(batch []*api.Container) error {
		return out.Send(&api.StreamContainersResponse{Containers: batch})
	})
}

func toContainerFilter(f *api.ContainerFilter) model.ContainerFilter {
	filter := model.ContainerFilter{
		ID:        f.GetId(),
		SandboxID: f.GetPodSandboxId(),
		Labels:    maps.Clone(f.GetLabelSelector()),
	}
	if state := f.GetState(); state != nil {
		filter.State = containerStates[state.State]
	}
	return filter
}

func fromContainer(st *model.ContainerStatus) *api.Container {
	cfg := containerConfig(st)
	return &api.Container{
		Id:           st.ID,
		PodSandboxId: st.SandboxID,
		Metadata:     fromContainerMetadata(cfg.Metadata),
		Image:        fromImageSpec(cfg.Image),
		ImageRef:     st.ImageRef,
		State:        fromContainerState(st.State),
		CreatedAt:    nanoseconds(st.CreatedAt),
		Labels:       cfg.Labels,
		Annotations:  cfg.Annotations,
		ImageId:      st.ImageID,
	}
}
