package v1alpha1

import (
	"context"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (s *runtimeService) ContainerStatus(ctx context.Context, req *api.ContainerStatusRequest) (
	*api.ContainerStatusResponse, error) {
	c := newCheck(req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.Runtime.ContainerStatus(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &api.ContainerStatusResponse{Status: fromContainerStatus(st)}, nil
}

func fromContainerStatus(st *model.ContainerStatus) *api.ContainerStatus {
	out := &api.ContainerStatus{
		Id:          proto.String(st.ID),
		Name:        proto.String(st.Config.Named()),
		State:       fromContainerState(st.State).Enum(),
		CreatedAt:   nanoseconds(st.CreatedAt),
		StartedAt:   nanoseconds(st.StartedAt),
		FinishedAt:  nanoseconds(st.FinishedAt),
		Image:       containerImage(st),
		ImageRef:    proto.String(st.ImageID),
		Labels:      st.Config.Labels,
		Annotations: st.Config.Annotations,
	}
	if st.State == model.ContainerExited {
		out.ExitCode = proto.Int32(st.ExitCode)
	}
	if why := st.Reason; why != "" {
		if st.Message != "" { // later versions have a field for it
			why += ": " + st.Message
		}
		out.Reason = proto.String(why)
	}
	for _, m := range st.Mounts() {
		out.Mounts = append(out.Mounts, fromMount(m))
	}
	return out
}
