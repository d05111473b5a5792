package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) PodSandboxStats(ctx context.Context,
	req *api.PodSandboxStatsRequest) (*api.PodSandboxStatsResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	u, err := s.Runtime.SandboxUsage(ctx, req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &api.PodSandboxStatsResponse{Stats: fromSandboxUsage(u)}, nil
}

func fromSandboxUsage(u *model.SandboxUsage) *api.PodSandboxStats {
	cfg, id := sandboxConfig(u.Sandbox), ""
	if u.Sandbox != nil {
		id = u.Sandbox.ID
	}
	linux := &api.LinuxPodSandboxStats{
		Cpu:    fromCPU(u.CPU, u.At),
		Memory: fromMemory(u.Memory, u.At),
		Io:     fromIO(u.IO, u.At),
	}
	if u.Processes != nil {
		linux.Process = &api.ProcessUsage{Timestamp: nanoseconds(u.At), ProcessCount: number(*u.Processes)}
	}
	for i, n := range u.Network {
		if i == 0 {
			linux.Network = &api.NetworkUsage{Timestamp: nanoseconds(u.At), DefaultInterface: fromInterface(n)}
		} else {
			linux.Network.Interfaces = append(linux.Network.Interfaces, fromInterface(n))
		}
	}
	for _, c := range u.Containers {
		linux.Containers = append(linux.Containers, fromContainerUsage(c))
	}
	return &api.PodSandboxStats{
		Attributes: &api.PodSandboxAttributes{
			Id:          id,
			Metadata:    fromSandboxMetadata(cfg.Metadata),
			Labels:      cfg.Labels,
			Annotations: cfg.Annotations,
		},
		Linux: linux,
	}
}

func fromInterface(n model.InterfaceUsage) *api.NetworkInterfaceUsage {
	return &api.NetworkInterfaceUsage{
		Name:     n.Name,
		RxBytes:  number(n.RxBytes),
		RxErrors: number(n.RxErrors),
		TxBytes:  number(n.TxBytes),
		TxErrors: number(n.TxErrors),
	}
}
