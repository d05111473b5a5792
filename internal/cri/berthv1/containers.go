package berthv1

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/containerd/errdefs"

	api "berth/api/berth/v1"
	"berth/internal/cri/request"
	"berth/internal/model"
	"berth/internal/pod"
	"berth/internal/stream"
)

// Containers are the node's containers as this API uses them.
type Containers interface {
	ContainerStatus(ctx context.Context, id string) (*model.ContainerStatus, error)
	// SignalContainer sends a signal, by its name or number, to the first process or to all.
	SignalContainer(ctx context.Context, id, signal string, all bool) error
}

// Streams gives out the addresses at which commands run.
type Streams interface {
	GetExec(context.Context, stream.ExecRequest) (url string, err error)
	GetAttach(context.Context, stream.AttachRequest) (url string, err error)
}

type containers struct {
	api.UnimplementedContainersServer
	containers Containers
	streams    Streams
}

// Exec gives the address at which one client can run a command.
func (s *containers) Exec(ctx context.Context, req *api.ExecRequest) (*api.ExecResponse, error) {
	c := request.New(req)
	switch {
	case req.GetContainerId() == "":
		c.Fail("container_id", "empty")
	case len(req.GetCmd()) == 0:
		c.Fail("cmd", "empty")
	case !req.GetStdin() && !req.GetStdout() && !req.GetStderr():
		c.Fail("stdin", "one of stdin, stdout and stderr is required")
	case req.GetTty() && req.GetStderr():
		c.Fail("stderr", "cannot be set together with tty, which has one output")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.containers.ContainerStatus(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if st.State != model.ContainerRunning { // better told here than after the client has connected
		return nil, fmt.Errorf("container %s is %s, not running: %w", st.ID, st.State, errdefs.ErrFailedPrecondition)
	}
	url, err := s.streams.GetExec(ctx, stream.ExecRequest{
		ContainerID: st.ID,
		Cmd:         slices.Clone(req.GetCmd()),
		As:          model.ExecAs{User: req.GetUser(), Env: slices.Clone(req.GetEnv()), Cwd: req.GetCwd()},
		Wanted: stream.Wanted{
			TTY: req.GetTty(), Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
		},
	})
	if err != nil {
		return nil, err
	}
	return &api.ExecResponse{Url: url}, nil
}

// Start gives the address at which one client starts a container and joins its streams.
func (s *containers) Start(ctx context.Context, req *api.StartRequest) (*api.StartResponse, error) {
	c := request.New(req)
	switch {
	case req.GetContainerId() == "":
		c.Fail("container_id", "empty")
	case !req.GetStdin() && !req.GetStdout() && !req.GetStderr():
		c.Fail("stdin", "one of stdin, stdout and stderr is required")
	case req.GetTty() && req.GetStderr():
		c.Fail("stderr", "cannot be set together with tty, which has one output")
	case req.GetWidth() > math.MaxUint16:
		c.Fail("width", "larger than 65535")
	case req.GetHeight() > math.MaxUint16:
		c.Fail("height", "larger than 65535")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	st, err := s.containers.ContainerStatus(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if st.State != model.ContainerCreated { // better told here than after the client has connected
		return nil, fmt.Errorf("container %s is %s, and only one that is created can be started: %w", st.ID, st.State,
			errdefs.ErrFailedPrecondition)
	}
	if has := st.Config.TTY; has != req.GetTty() {
		return nil, fmt.Errorf("tty: is %t, and has to be %t as in the configuration of container %s: %w", req.GetTty(), has,
			st.ID, errdefs.ErrInvalidArgument)
	}
	url, err := s.streams.GetAttach(ctx, stream.AttachRequest{
		ContainerID: st.ID, Start: true,
		Size: pod.TermSize{Width: uint16(req.GetWidth()), Height: uint16(req.GetHeight())},
		Wanted: stream.Wanted{
			TTY: req.GetTty(), Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
		},
	})
	if err != nil {
		return nil, err
	}
	return &api.StartResponse{Url: url}, nil
}

// Kill sends a signal.
func (s *containers) Kill(ctx context.Context, req *api.KillRequest) (*api.KillResponse, error) {
	c := request.New(req)
	if req.GetContainerId() == "" {
		c.Fail("container_id", "empty")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	signal := req.GetSignal()
	if signal == "" {
		signal = "SIGKILL"
	}
	if err := s.containers.SignalContainer(ctx, req.GetContainerId(), signal, req.GetAll()); err != nil {
		return nil, err
	}
	return &api.KillResponse{}, nil
}
