package v1

import (
	"context"
	"math"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) StopContainer(ctx context.Context, req *api.StopContainerRequest) (*api.StopContainerResponse, error) {
	c := newCheck(req)
	c.id("container_id", req.GetContainerId())
	timeout := toSeconds(c, "timeout", req.GetTimeout())
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StopContainer(ctx, req.ContainerId, timeout); err != nil {
		return nil, err
	}
	return &api.StopContainerResponse{}, nil
}

// toSeconds translates a number of seconds. What is longer than a Duration can be, 292 years, is that.
func toSeconds(c *check, p path, seconds int64) time.Duration {
	if seconds < 0 {
		c.fail(p, "%d is negative", seconds)
		return 0
	}
	if seconds > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(seconds) * time.Second
}
