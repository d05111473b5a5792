package v1

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	berthv1 "berth/api/berth/v1"
	"berth/internal/model"
)

// CreateContainer takes the sandbox from its ID alone: sandbox_config is the one that RunPodSandbox had, repeated. The
// exception is whether the pod is privileged. A kubelet makes the configuration anew, and a pod becomes privileged with
// the first privileged container that is added to it (`kubectl debug --profile=sysadmin`).
func (s *runtimeService) CreateContainer(ctx context.Context, req *api.CreateContainerRequest) (
	*api.CreateContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	cfg := toContainerConfig(c, "config", req.GetConfig())
	if again := req.GetSandboxConfig(); again.GetMetadata() != nil { // some clients leave it out, or empty
		toSandboxConfig(c, "sandbox_config", again)
	}
	if cfg != nil {
		cfg.PodPrivileged = req.GetSandboxConfig().GetLinux().GetSecurityContext().GetPrivileged()
	}
	if err := c.Err(); err != nil {
		if c.imageVolume {
			err = fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
		}
		return nil, err
	}
	cfg.RotateLog = len(metadata.ValueFromIncomingContext(ctx, berthv1.RotateLog)) > 0
	cfg.CreateHostPaths = s.CreateHostPaths != nil && s.CreateHostPaths()
	id, err := s.Runtime.CreateContainer(ctx, req.PodSandboxId, cfg)
	if volume := (*model.ImageVolumeError)(nil); errors.As(err, &volume) {
		// A kubelet counts failures of image volumes by this beginning.
		err = fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
	}
	if err != nil {
		return nil, err
	}
	return &api.CreateContainerResponse{ContainerId: id}, nil
}
