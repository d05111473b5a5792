package pod

import (
	"context"

	"berth/internal/audit"
	keeper "berth/internal/keeper/client"
	"berth/internal/pod/index"
)

// auditor writes down what clients do to containers.
type auditor struct {
	log   *audit.Log
	index *index.Index
}

func (m *Manager) auditor() auditor { return auditor{m.cfg.Audit, m.index} }

// exec writes down that a command begins in a container. The caller calls what it returns at the end.
func (a auditor) exec(ctx context.Context, kind, id string, opts *ExecOptions) func(*keeper.ExecExit, error) {
	end := a.container(ctx, id, audit.Operation{
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

// container writes down that something is done to a container, but for one that is not there.
func (a auditor) container(ctx context.Context, id string, op audit.Operation) func(exitCode int, err error) {
	nothing := func(int, error) {}
	if !a.log.On() {
		return nothing
	}
	c, err := a.index.Container(id)
	if err != nil {
		return nothing
	}
	r := c.Record()
	op.ID, op.Container = c.ID(), r.Config.Metadata.Name
	return a.sandbox(ctx, r.SandboxID, op)
}

// sandbox writes down that something is done to a pod or to one of its containers.
func (a auditor) sandbox(ctx context.Context, id string, op audit.Operation) func(exitCode int, err error) {
	op.PodID = id
	if s, err := a.index.Sandbox(id); err == nil {
		r := s.Record()
		op.Namespace, op.Pod = r.Config.Metadata.Namespace, r.Config.Metadata.Name
	}
	return a.log.Begin(ctx, op)
}
