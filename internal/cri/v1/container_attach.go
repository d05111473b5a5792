package v1

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/stream"
)

func (s *runtimeService) Attach(ctx context.Context, req *api.AttachRequest) (*api.AttachResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	streams(c, req.GetTty(), req.GetStdin(), req.GetStdout(), req.GetStderr())
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.running(ctx, req.ContainerId)
	if err != nil {
		return nil, err
	}
	// "This must match the TTY setting in the ContainerConfig": a kubelet takes it from the pod's spec, whatever
	// its client wants.
	if has := containerConfig(st).TTY; has != req.Tty {
		return nil, fmt.Errorf("tty: is %t, and has to be %t as in the ContainerConfig of container %s: %w", req.Tty,
			has, st.ID, errdefs.ErrInvalidArgument)
	}
	url, err := s.Streams.GetAttach(ctx, stream.AttachRequest{
		ContainerID: st.ID,
		Wanted:      stream.Wanted{TTY: req.Tty, Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr},
	})
	if err != nil {
		return nil, err
	}
	return &api.AttachResponse{Url: url}, nil
}
