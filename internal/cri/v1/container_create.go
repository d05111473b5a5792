package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer takes the sandbox from its ID alone: sandbox_config is the one that RunPodSandbox had, repeated.
func (s *runtimeService) CreateContainer(ctx context.Context, req *api.CreateContainerRequest) (
	*api.CreateContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	cfg := toContainerConfig(c, "config", req.GetConfig())
	if again := req.GetSandboxConfig(); again.GetMetadata() != nil { // some clients leave it out, or empty
		toSandboxConfig(c, "sandbox_config", again)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	id, err := s.Runtime.CreateContainer(ctx, req.PodSandboxId, cfg)
	if err != nil {
		return nil, err
	}
	return &api.CreateContainerResponse{ContainerId: id}, nil
}
