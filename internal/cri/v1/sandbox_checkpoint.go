package v1

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) CheckpointPod(ctx context.Context, req *api.CheckpointPodRequest) (*api.CheckpointPodResponse,
	error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	c.Absolute("output_path", req.GetOutputPath())
	if len(req.GetContainerIds()) == 0 {
		c.Fail("container_ids", "is required")
	}
	for i, id := range req.GetContainerIds() {
		c.ID(path("container_ids").At(i), id)
	}
	noOptions(c, req.GetOptions())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.CheckpointSandbox(ctx, req.PodSandboxId, req.OutputPath, req.ContainerIds); err != nil {
		return nil, err
	}
	return &api.CheckpointPodResponse{}, nil
}

func (s *runtimeService) RestorePod(ctx context.Context, req *api.RestorePodRequest) (*api.RestorePodResponse, error) {
	c := newCheck(s.dialect, req)
	c.Absolute("checkpoint_path", req.GetCheckpointPath())
	cfg := toSandboxConfig(c, "config", req.GetConfig())
	if len(req.GetContainerConfigs()) == 0 {
		c.Fail("container_configs", "is required")
	}
	var containers []*model.ContainerConfig
	names := map[string]bool{}
	for i, in := range req.GetContainerConfigs() {
		at := path("container_configs").At(i)
		container := toContainerConfig(c, at, in)
		if container == nil {
			continue
		}
		if name := container.Metadata.Name; names[name] {
			c.Fail(at.Field("metadata.name"), "%q is the name of another one", name)
		}
		names[container.Metadata.Name] = true
		container.CreateHostPaths = s.CreateHostPaths != nil && s.CreateHostPaths()
		containers = append(containers, container)
	}
	noOptions(c, req.GetOptions())
	if err := c.Err(); err != nil {
		return nil, err
	}
	id, ids, err := s.Runtime.RestoreSandbox(ctx, req.CheckpointPath, cfg,
		s.dialect.Handler(req.Config, req.RuntimeHandler), containers)
	if err != nil {
		return nil, err
	}
	if len(ids) != len(containers) {
		return nil, fmt.Errorf("%d of %d containers: %w", len(ids), len(containers), errdefs.ErrInternal)
	}
	resp := &api.RestorePodResponse{PodSandboxId: id}
	for i, container := range containers {
		resp.RestoredContainers = append(resp.RestoredContainers,
			&api.RestoredContainer{Name: container.Metadata.Name, ContainerId: ids[i]})
	}
	return resp, nil
}

// noOptions refuses options of a checkpoint: there are none that this runtime knows.
func noOptions(c *check, options map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		c.Fail(path("options").Key(key), "is unknown")
	}
}
