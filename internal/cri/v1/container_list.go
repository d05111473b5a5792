package v1

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ListContainers(ctx context.Context,
	req *api.ListContainersRequest) (*api.ListContainersResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.Runtime.ListContainers(ctx, toContainerFilter(s.dialect, req.GetFilter()))
	if err != nil {
		return nil, err
	}
	resp := &api.ListContainersResponse{Containers: make([]*api.Container, 0, len(list))}
	for _, st := range list {
		resp.Containers = append(resp.Containers, fromContainer(s.dialect, st))
	}
	return resp, nil
}

func (s *runtimeService) StreamContainers(req *api.StreamContainersRequest,
	out grpc.ServerStreamingServer[api.StreamContainersResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.Runtime.ListContainers(out.Context(), toContainerFilter(s.dialect, req.GetFilter()))
	if err != nil {
		return err
	}
	convert := func(st *model.ContainerStatus) *api.Container { return fromContainer(s.dialect, st) }
	return sendAll(list, convert, func(batch []*api.Container) error {
		return out.Send(&api.StreamContainersResponse{Containers: batch})
	})
}

func toContainerFilter(d Dialect, f *api.ContainerFilter) model.ContainerFilter {
	filter := model.ContainerFilter{
		ID:        f.GetId(),
		SandboxID: f.GetPodSandboxId(),
		Labels:    maps.Clone(f.GetLabelSelector()),
	}
	if state := f.GetState(); state != nil {
		filter.States = d.States(state.State)
	}
	return filter
}

func fromContainer(d Dialect, st *model.ContainerStatus) *api.Container {
	cfg := containerConfig(st)
	return &api.Container{
		Id:           st.ID,
		PodSandboxId: st.SandboxID,
		Metadata:     fromContainerMetadata(cfg.Metadata),
		Image:        fromImageSpec(d, cfg.Image),
		// The ID, as containerd has it: kubelets before 1.30 remove images that no container in the list names so.
		ImageRef:    st.ImageID,
		State:       d.State(st.State),
		CreatedAt:   nanoseconds(st.CreatedAt),
		Labels:      cfg.Labels,
		Annotations: cfg.Annotations,
		ImageId:     st.ImageID,
	}
}
