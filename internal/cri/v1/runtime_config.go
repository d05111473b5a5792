package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) RuntimeConfig(_ context.Context,
	req *api.RuntimeConfigRequest) (*api.RuntimeConfigResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	driver := api.CgroupDriver_CGROUPFS
	if s.Runtime.CgroupDriver() == "systemd" {
		driver = api.CgroupDriver_SYSTEMD
	}
	return &api.RuntimeConfigResponse{Linux: &api.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}
