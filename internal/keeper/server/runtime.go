package server

import (
	"context"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper"
	"berth/internal/keeper/record"
)

// stdio are a process's own ends. The caller closes them. With a terminal they are all nil.
type stdio struct {
	in, out, err *os.File
}

// launch is a container or exec to be started.
type launch struct {
	spec    *specs.Spec    // a container
	restore string         // where CRIU's images are that it is made from; empty: it is started anew
	criu    string         // the program
	process *specs.Process // an exec
	execID  string
	io      stdio
	sub     map[string]string // an exec's own cgroup, as libcontainer has it
	subDir  string
	phases  *phases      // a container's
	setup   keeper.Setup // a container's: what sets it up
	// hold is called when all is set up, and before the program begins; for an exec by a runtime that cannot wait, after that. The
	// console is the caller's no more.
	hold func(launched) error
}

// launched is a process that has been started. Console is a terminal's master.
type launched struct {
	pid     int
	console int // -1: none
	cgroups map[string]string
	join    *record.Join
	setup   keeper.Setup // of a container
}

// runtime makes containers. Its calls may take as long as the kernel does; the context bounds those that run a program.
type runtime interface {
	run(ctx context.Context, c *container, l *launch) error
	// begun says whether the program of a container that was held has begun to run.
	begun(c *container) bool
	// exec starts a further process. It has called l.hold when held is true; otherwise the program runs already. The end of the
	// context ends a start that is under way.
	exec(ctx context.Context, c *container, l *launch) (res launched, held bool, err error)
	update(ctx context.Context, c *container, r *specs.LinuxResources) error
	pause(ctx context.Context, c *container) error
	resume(ctx context.Context, c *container) error
	// destroy removes what the runtime has of a container whose processes are dead. It is idempotent.
	destroy(ctx context.Context, c *container) error
}

func (s *Server) runtime(r *record.Container) runtime {
	if r.Runtime != "" {
		return &binary{s: s, path: r.Runtime, root: r.RuntimeRoot, systemd: r.Systemd}
	}
	return &inProcess{s: s}
}
