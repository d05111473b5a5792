package v1alpha1

import (
	"context"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (s *runtimeService) PodSandboxStatus(ctx context.Context, req *api.PodSandboxStatusRequest) (
	*api.PodSandboxStatusResponse, error) {
	c := newCheck(req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.Runtime.SandboxStatus(ctx, req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	return &api.PodSandboxStatusResponse{Status: fromSandboxStatus(st)}, nil
}

func fromSandboxStatus(st *model.SandboxStatus) *api.PodSandboxStatus {
	out := &api.PodSandboxStatus{
		Id:        proto.String(st.ID),
		Name:      proto.String(st.Config.Named()),
		State:     fromSandboxState(st.State).Enum(),
		CreatedAt: nanoseconds(st.CreatedAt),
		Linux: &api.LinuxPodSandboxStatus{
			Namespaces: &api.Namespace{Options: fromNamespaces(st.Config.Security.Namespaces)}},
		Labels:      st.Config.Labels,
		Annotations: st.Config.Annotations,
	}
	if len(st.IPs) > 0 {
		out.Network = &api.PodSandboxNetworkStatus{Ip: proto.String(st.IPs[0])}
	}
	if st.NetNS != "" {
		out.Linux.Namespaces.Network = proto.String(st.NetNS)
	}
	return out
}

func fromNamespaces(o model.NamespaceOptions) *api.NamespaceOption {
	return &api.NamespaceOption{
		HostNetwork: proto.Bool(o.Network == model.NamespaceNode),
		HostPid:     proto.Bool(o.PID == model.NamespaceNode),
		HostIpc:     proto.Bool(o.IPC == model.NamespaceNode),
	}
}
