package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) UpdateRuntimeConfig(ctx context.Context, req *api.UpdateRuntimeConfigRequest) (
	*api.UpdateRuntimeConfigResponse, error) {
	c := newCheck(s.dialect, req)
	cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if cidr != "" {
		podCIDR(c, "runtime_config.network_config.pod_cidr", cidr)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	if cidr != "" { // a kubelet that has no CIDR yet sends none
		if err := s.Runtime.SetPodCIDR(ctx, cidr); err != nil {
			return nil, err
		}
	}
	return &api.UpdateRuntimeConfigResponse{}, nil
}
