package v1

import (
	"context"

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
	id, err := s.running(ctx, req.ContainerId)
	if err != nil {
		return nil, err
	}
	url, err := s.Streams.GetAttach(stream.AttachRequest{
		ContainerID: id,
		Wanted:      stream.Wanted{TTY: req.Tty, Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr},
	})
	if err != nil {
		return nil, err
	}
	return &api.AttachResponse{Url: url}, nil
}
