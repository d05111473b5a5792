package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is how many bytes of output an answer has, of both streams together: kubelets and crictl accept messages
// of 16 MiB, and some of that is for what is around the output.
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
	out, errOut := fit(stdout, stderr, maxMessage)
	if len(out) < len(stdout) || len(errOut) < len(stderr) {
		s.Log.WarnContext(ctx, "the output of a command is cut off: a kubelet takes an answer of at most 16 MiB",
			"container_id", req.ContainerId)
	}
	return &api.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(code)}, nil
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
