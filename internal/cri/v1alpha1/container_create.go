package v1alpha1

import (
	"context"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
)

// CreateContainer takes the pod from its ID alone: sandbox_config is the one that CreatePodSandbox had, repeated.
func (s *runtimeService) CreateContainer(ctx context.Context, req *api.CreateContainerRequest) (
	*api.CreateContainerResponse, error) {
	c := newCheck(req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	cfg := toContainerConfig(c, "config", req.GetConfig())
	repeated(c, req.GetSandboxConfig())
	if err := c.Err(); err != nil {
		return nil, err
	}
	cfg.CreateHostPaths = s.CreateHostPaths != nil && s.CreateHostPaths()
	id, err := s.Runtime.CreateContainer(ctx, req.GetPodSandboxId(), cfg)
	if err != nil {
		return nil, err
	}
	return &api.CreateContainerResponse{ContainerId: proto.String(id)}, nil
}

// repeated checks a pod's configuration that says nothing new. Some clients leave it out, or empty.
func repeated(c *check, cfg *api.PodSandboxConfig) {
	if cfg.GetName() != "" {
		toSandboxConfig(c, "sandbox_config", cfg)
	}
}
