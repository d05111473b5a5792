package v1

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
	"berth/internal/stream"
)

// PortForward takes the ports from the request for WebSocket clients; SPDY clients name them stream by stream.
func (s *runtimeService) PortForward(ctx context.Context,
	req *api.PortForwardRequest) (*api.PortForwardResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	for i, port := range req.GetPort() {
		c.Port(path("port").At(i), port)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.Runtime.SandboxStatus(ctx, req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	if st.State != model.SandboxReady {
		return nil, fmt.Errorf("pod sandbox %s is not ready: %w", st.ID, errdefs.ErrFailedPrecondition)
	}
	url, err := s.Streams.GetPortForward(ctx,
		stream.PortForwardRequest{SandboxID: st.ID, Ports: slices.Clone(req.Port)})
	if err != nil {
		return nil, err
	}
	return &api.PortForwardResponse{Url: url}, nil
}
