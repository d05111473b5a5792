package v1

import (
	"context"

	"google.golang.org/protobuf/proto"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
)

func (s *runtimeService) UpdatePodSandboxResources(ctx context.Context, req *api.UpdatePodSandboxResourcesRequest) (
	*api.UpdatePodSandboxResourcesResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	overhead := toResources(c, "overhead", req.GetOverhead())
	resources := toResources(c, "resources", withoutOverhead(req.GetResources()))
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.UpdateSandboxResources(ctx, req.PodSandboxId, overhead, resources); err != nil {
		return nil, err
	}
	return &api.UpdatePodSandboxResourcesResponse{}, nil
}

// withoutOverhead are the limits of a pod without its overhead as a kubelet means them. Those of 1.36 and before
// subtract the overhead from the pod's limits without a look at them (subtractOverheadFromResourceConfig): from -1,
// which is no limit, and from a small quota, of which less is left than the kernel takes. Such a quota becomes the
// smallest one, as kubelets do elsewhere (MilliCPUToQuota). A refused call would have the resize of the pod refused for
// good.
func withoutOverhead(r *api.LinuxContainerResources) *api.LinuxContainerResources {
	if r == nil {
		return nil
	}
	r = proto.CloneOf(r)
	switch {
	case r.CpuQuota < 0:
		r.CpuQuota = -1
	case r.CpuQuota > 0:
		r.CpuQuota = max(r.CpuQuota, request.MinCPUQuota)
	}
	r.MemoryLimitInBytes = max(r.MemoryLimitInBytes, -1)
	return r
}
