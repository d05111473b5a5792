package v1alpha1

import (
	"context"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
)

// CreatePodSandbox leaves a pod ready for containers: the interface has no call that starts one.
func (s *runtimeService) CreatePodSandbox(ctx context.Context, req *api.CreatePodSandboxRequest) (
	*api.CreatePodSandboxResponse, error) {
	c := newCheck(req)
	cfg := toSandboxConfig(c, "config", req.GetConfig())
	if err := c.Err(); err != nil {
		return nil, err
	}
	id, err := s.Runtime.RunSandbox(ctx, cfg, "")
	if err != nil {
		return nil, err
	}
	return &api.CreatePodSandboxResponse{PodSandboxId: proto.String(id)}, nil
}
