package pod

import (
	"context"

	"berth/internal/audit"
	keeper "berth/internal/keeper/client"
)

// auditExec writes down that a command begins in a container. The caller calls what it returns at the end.
func (m *Manager) auditExec(ctx context.Context, kind, id string, opts *ExecOptions) func(*keeper.ExecExit, error) {
	end := m.auditContainer(ctx, id, audit.Operation{
		Kind: kind, Command: opts.Cmd, User: opts.As.User, Stdin: opts.Stdin != nil, TTY: opts.TTY,
	})
	return func(exit *keeper.ExecExit, err error) {
		code := -1
		switch {
		case err == nil && exit.TimedOut:
			err = context.DeadlineExceeded
		case err == nil:
			code = exit.ExitCode
		}
		end(code, err)
	}
}

// auditContainer writes down that something is done to a container, but for one that is not there.
func (m *Manager) auditContainer(ctx context.Context, id string, op audit.Operation) func(exitCode int, err error) {
	nothing := func(int, error) {}
	if !m.cfg.Audit.On() {
		return nothing
	}
	c, err := m.index.Container(id)
	if err != nil {
		return nothing
	}
	r := c.Record()
	op.ID, op.Container = c.ID(), r.Config.Metadata.Name
	return m.auditSandbox(ctx, r.SandboxID, op)
}

// auditSandbox writes down that something is done to a pod or to one of its containers.
func (m *Manager) auditSandbox(ctx context.Context, id string, op audit.Operation) func(exitCode int, err error) {
	op.PodID = id
	if s, err := m.index.Sandbox(id); err == nil {
		r := s.Record()
		op.Namespace, op.Pod = r.Config.Metadata.Namespace, r.Config.Metadata.Name
	}
	return m.cfg.Audit.Begin(ctx, op)
}
