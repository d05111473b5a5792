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

func (s *runtimeService) Exec(ctx context.Context, req *api.ExecRequest) (*api.ExecResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	c.Command("cmd", req.GetCmd())
	streams(c, req.GetTty(), req.GetStdin(), req.GetStdout(), req.GetStderr())
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.running(ctx, req.ContainerId)
	if err != nil {
		return nil, err
	}
	url, err := s.Streams.GetExec(ctx, stream.ExecRequest{
		ContainerID: st.ID,
		Cmd:         slices.Clone(req.Cmd),
		Wanted:      stream.Wanted{TTY: req.Tty, Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr},
	})
	if err != nil {
		return nil, err
	}
	return &api.ExecResponse{Url: url}, nil
}

func streams(c *check, tty, stdin, stdout, stderr bool) {
	if !stdin && !stdout && !stderr {
		c.Fail("stdin", "one of stdin, stdout and stderr is required")
	}
	if tty && stderr {
		c.Fail("stderr", "cannot be set together with tty, which has one output")
	}
}

// running finds a container that runs: a client is better told here than after it has connected.
func (s *runtimeService) running(ctx context.Context, id string) (*model.ContainerStatus, error) {
	st, err := s.Runtime.ContainerStatus(ctx, id)
	if err != nil {
		return nil, err
	}
	if st.State != model.ContainerRunning {
		return nil, fmt.Errorf("container %s is %s, not running: %w", st.ID, st.State, errdefs.ErrFailedPrecondition)
	}
	return st, nil
}
