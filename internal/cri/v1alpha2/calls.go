package v1alpha2

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"berth/api/pouch"
)

func (s *runtimeService) StartPodSandbox(ctx context.Context, req *pouch.StartPodSandboxRequest) (
	*pouch.StartPodSandboxResponse, error) {
	if err := required("pod_sandbox_id", req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &pouch.StartPodSandboxResponse{}, s.ext.StartSandbox(ctx, req.GetPodSandboxId())
}

func (s *runtimeService) PauseContainer(ctx context.Context, req *pouch.PauseContainerRequest) (
	*pouch.PauseContainerResponse, error) {
	if err := required("container_id", req.GetContainerId()); err != nil {
		return nil, err
	}
	return &pouch.PauseContainerResponse{}, s.ext.PauseContainer(ctx, req.GetContainerId())
}

func (s *runtimeService) UnpauseContainer(ctx context.Context, req *pouch.UnpauseContainerRequest) (
	*pouch.UnpauseContainerResponse, error) {
	if err := required("container_id", req.GetContainerId()); err != nil {
		return nil, err
	}
	return &pouch.UnpauseContainerResponse{}, s.ext.UnpauseContainer(ctx, req.GetContainerId())
}

func (s *volumeService) RemoveVolume(ctx context.Context,
	req *pouch.RemoveVolumeRequest) (*pouch.RemoveVolumeResponse, error) {
	if err := required("volume_name", req.GetVolumeName()); err != nil {
		return nil, err
	}
	return &pouch.RemoveVolumeResponse{}, s.volumes.RemoveVolume(ctx, req.GetVolumeName())
}

func required(field, value string) error {
	switch {
	case value == "":
		return fmt.Errorf("%s: is required: %w", field, errdefs.ErrInvalidArgument)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("%s: contains a NUL byte: %w", field, errdefs.ErrInvalidArgument)
	}
	return nil
}
