package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ContainerStatus(ctx context.Context, req *api.ContainerStatusRequest) (
	*api.ContainerStatusResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.Runtime.ContainerStatus(ctx, req.ContainerId)
	if err != nil {
		return nil, err
	}
	resp := &api.ContainerStatusResponse{Status: fromContainerStatus(s.dialect, st)}
	if req.Verbose {
		info, err := s.Runtime.ContainerInfo(ctx, st.ID)
		if err != nil {
			return nil, err
		}
		resp.Info = verboseInfo(s.dialect, info)
	}
	return resp, nil
}

func fromContainerStatuses(d Dialect, list []*model.ContainerStatus) []*api.ContainerStatus {
	out := make([]*api.ContainerStatus, 0, len(list))
	for _, st := range list {
		out = append(out, fromContainerStatus(d, st))
	}
	return out
}

func fromContainerStatus(d Dialect, st *model.ContainerStatus) *api.ContainerStatus {
	cfg := containerConfig(st)
	out := &api.ContainerStatus{
		Id:          st.ID,
		Metadata:    fromContainerMetadata(cfg.Metadata),
		State:       d.State(st.State),
		CreatedAt:   nanoseconds(st.CreatedAt),
		StartedAt:   nanoseconds(st.StartedAt),
		FinishedAt:  nanoseconds(st.FinishedAt),
		ExitCode:    st.ExitCode,
		Image:       fromImageSpec(d, cfg.Image),
		ImageRef:    st.ImageRef,
		Reason:      st.Reason,
		Message:     st.Message,
		Labels:      cfg.Labels,
		Annotations: cfg.Annotations,
		LogPath:     st.LogPath,
		ImageId:     st.ImageID,
		StopSignal:  fromSignal(st.StopSignal),
	}
	// A kubelet asks for an image by its ID and shows people what stands here.
	if st.Config != nil {
		out.Image.Image = st.ImageName()
	}
	out.Mounts = fromMounts(d, st)
	if st.Resources != nil {
		out.Resources = &api.ContainerResources{Linux: fromResources(st.Resources)}
	}
	if u := st.User; u != nil {
		out.User = &api.ContainerUser{
			Linux: &api.LinuxContainerUser{Uid: u.UID, Gid: u.GID, SupplementalGroups: u.Groups},
		}
	}
	d.WriteContainerStatus(st, out)
	return out
}

func containerConfig(st *model.ContainerStatus) *model.ContainerConfig {
	if st == nil || st.Config == nil {
		return &model.ContainerConfig{}
	}
	return st.Config
}
