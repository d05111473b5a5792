package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is what kubelets and crictl accept as one message; some of it is for what is around the output.
const maxMessage = 16<<20 - 4096

func (s *runtimeService) ExecSync(ctx context.Context, req *api.ExecSyncRequest) (*api.ExecSyncResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	c.Command("cmd", req.GetCmd())
	timeout := c.Seconds("timeout", req.GetTimeout())
	if err := c.Err(); err != nil {
		return nil, err
	}
	stdout, stderr, code, err := s.Runtime.ExecSync(ctx, req.ContainerId, req.Cmd, timeout)
	if err != nil {
		return nil, err
	}
	stdout, stderr = fit(stdout, stderr, maxMessage)
	return &api.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: int32(code)}, nil
}

// fit drops the end of what is too long for limit bytes together. Each of the two keeps half of them at least.
func fit(a, b []byte, limit int) ([]byte, []byte) {
	half := limit / 2
	if len(a)+len(b) <= limit {
		return a, b
	}
	if len(a) > half {
		a = a[:max(half, limit-len(b))]
	}
	if len(a)+len(b) > limit {
		b = b[:limit-len(a)]
	}
	return a, b
}
