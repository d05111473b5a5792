package v1

import (
	"context"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) PodSandboxStatus(ctx context.Context, req *api.PodSandboxStatusRequest) (
	*api.PodSandboxStatusResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	// Taken first: what a kubelet with evented PLEG compares must not be newer than what it is told.
	now := time.Now()
	st, err := s.Runtime.SandboxStatus(ctx, req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	containers, err := s.Runtime.ListContainers(ctx, model.ContainerFilter{SandboxID: st.ID})
	if err != nil {
		return nil, err
	}
	resp := &api.PodSandboxStatusResponse{
		Status:             fromSandboxStatus(st),
		ContainersStatuses: fromContainerStatuses(s.dialect, containers),
		Timestamp:          now.UnixNano(),
	}
	if req.Verbose {
		info, err := s.Runtime.SandboxInfo(ctx, st.ID)
		if err != nil {
			return nil, err
		}
		resp.Info = verboseInfo(s.dialect, info)
	}
	return resp, nil
}

func fromSandboxStatus(st *model.SandboxStatus) *api.PodSandboxStatus {
	if st == nil {
		return nil
	}
	cfg := sandboxConfig(st)
	out := &api.PodSandboxStatus{
		Id:        st.ID,
		Metadata:  fromSandboxMetadata(cfg.Metadata),
		State:     fromSandboxState(st.State),
		CreatedAt: nanoseconds(st.CreatedAt),
		Network:   &api.PodSandboxNetworkStatus{},
		Linux: &api.LinuxPodSandboxStatus{
			Namespaces: &api.Namespace{Options: fromNamespaces(cfg.Security.Namespaces)}},
		Labels:         cfg.Labels,
		Annotations:    cfg.Annotations,
		RuntimeHandler: st.RuntimeHandler,
	}
	for i, ip := range st.IPs {
		if i == 0 {
			out.Network.Ip = ip
		} else {
			out.Network.AdditionalIps = append(out.Network.AdditionalIps, &api.PodIP{Ip: ip})
		}
	}
	return out
}

func sandboxConfig(st *model.SandboxStatus) *model.SandboxConfig {
	if st == nil || st.Config == nil {
		return &model.SandboxConfig{}
	}
	return st.Config
}

// nanoseconds since 1970; 0 for a time that has not come.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
