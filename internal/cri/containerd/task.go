package containerd

import (
	"context"
	"fmt"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/model"
)

type taskService struct {
	api.UnimplementedTasksServer
	api *API
}

// Get is what runs in a container or a sandbox. A container that was never started has no task, and neither has a
// sandbox that is not ready. One that has ended has its exit code, as containerd's has until somebody deletes it.
func (s *taskService) Get(ctx context.Context, req *api.GetRequest) (*api.GetResponse, error) {
	c, sandbox, err := s.find(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	if req.ExecID != "" {
		return nil, fmt.Errorf("exec %q of container %q: Berth shows no execs in containerd's API: %w",
			req.ExecID, req.ContainerID, errdefs.ErrNotFound)
	}
	process := s.process(ctx, c, sandbox)
	if process == nil {
		return nil, noTask(req.ContainerID)
	}
	return &api.GetResponse{Process: process}, nil
}

// find finds the container or the sandbox of a task. Only the namespace k8s.io has tasks.
func (s *taskService) find(ctx context.Context, id string) (*model.ContainerStatus, *model.SandboxStatus, error) {
	in, err := inNamespace(ctx)
	if err != nil {
		return nil, nil, err
	}
	if !in {
		return nil, nil, noTask(id)
	}
	return s.api.find(ctx, id)
}

func noTask(id string) error {
	return fmt.Errorf("container %q has no task: %w", id, errdefs.ErrNotFound)
}

func (s *taskService) process(
	ctx context.Context, c *model.ContainerStatus, sandbox *model.SandboxStatus,
) *task.Process {
	if sandbox == nil {
		return containerProcess(c)
	}
	if sandbox.State != model.SandboxReady {
		return nil
	}
	p := &task.Process{ID: sandbox.ID, ContainerID: sandbox.ID, Status: task.Status_RUNNING}
	p.Pid = uint32(s.api.sandboxes.pid(ctx, sandbox))
	return p
}

// containerProcess is a container's init process; nil: it has not been started.
func containerProcess(c *model.ContainerStatus) *task.Process {
	p := &task.Process{ID: c.ID, ContainerID: c.ID, Terminal: c.Config.TTY}
	switch c.State {
	case model.ContainerRunning:
		p.Status = task.Status_RUNNING
	case model.ContainerPaused:
		p.Status = task.Status_PAUSED
	case model.ContainerExited:
		if c.StartedAt.IsZero() {
			return nil
		}
		// Its PID may be another process's by now.
		p.Status, p.ExitStatus, p.ExitedAt = task.Status_STOPPED, uint32(c.ExitCode), timestamppb.New(c.FinishedAt)
		return p
	default:
		return nil
	}
	p.Pid = uint32(c.PID)
	return p
}

// List are all tasks.
func (s *taskService) List(ctx context.Context, req *api.ListTasksRequest) (*api.ListTasksResponse, error) {
	resp := &api.ListTasksResponse{}
	in, err := inNamespace(ctx)
	if err != nil || !in {
		return resp, err
	}
	filter := filters.Filter(filters.Always)
	if req.Filter != "" {
		if filter, err = filters.Parse(req.Filter); err != nil {
			return nil, err
		}
	}
	containers, err := s.api.Runtime.ListContainers(ctx, model.ContainerFilter{})
	if err != nil {
		return nil, err
	}
	sandboxes, err := s.api.Runtime.ListSandboxes(ctx, model.SandboxFilter{State: model.SandboxReady})
	if err != nil {
		return nil, err
	}
	add := func(p *task.Process) {
		if p != nil && filter.Match(fields{"id": p.ID, "container_id": p.ContainerID}) {
			resp.Tasks = append(resp.Tasks, p)
		}
	}
	for _, sandbox := range sandboxes {
		add(s.process(ctx, nil, sandbox))
	}
	for _, c := range containers {
		add(containerProcess(c))
	}
	return resp, nil
}

// ListPids are the processes of a container. A sandbox has its init process, or none.
func (s *taskService) ListPids(ctx context.Context, req *api.ListPidsRequest) (*api.ListPidsResponse, error) {
	c, sandbox, err := s.find(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	resp := &api.ListPidsResponse{}
	if s.process(ctx, c, sandbox) == nil {
		return nil, noTask(req.ContainerID)
	}
	if sandbox != nil {
		if sandbox.PID != 0 {
			resp.Processes = []*task.ProcessInfo{{Pid: uint32(sandbox.PID)}}
		}
		return resp, nil
	}
	pids, err := s.api.Runtime.ContainerProcesses(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		resp.Processes = append(resp.Processes, &task.ProcessInfo{Pid: uint32(pid)})
	}
	return resp, nil
}
