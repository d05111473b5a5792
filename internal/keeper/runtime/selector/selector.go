// Package selector chooses the engine of a container, and records the engine's name and the reason for the choice.
package selector

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/libcontainer"
	"berth/internal/keeper/runtime/oci"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/runtime/shim"
	"berth/internal/keeper/runtime/stage"
	"berth/internal/mountns"
	"berth/internal/rawenv"
)

// Selector is the runtime.Runtime that the keeper uses: it passes each call to the engine of the container. To add an
// engine, add a case to Start and to of.
type Selector struct {
	dir          runtime.Dir
	spawning     runtime.Spawning
	stage        *stage.Engine
	libcontainer *libcontainer.Engine
}

var (
	_ runtime.Runtime      = (*Selector)(nil)
	_ runtime.Checkpointer = (*Selector)(nil)
	_ runtime.Signaller    = (*Selector)(nil)
)

// New returns a selector of these engines, and of one for each OCI runtime binary and shim that a record names.
func New(dir runtime.Dir, spawning runtime.Spawning, st *stage.Engine, lib *libcontainer.Engine) *Selector {
	return &Selector{dir: dir, spawning: spawning, stage: st, libcontainer: lib}
}

// of returns the engine that has set a container up, according to the container's record.
func (s *Selector) of(c runtime.Container) runtime.Runtime {
	r := c.Record()
	switch r.Engine() {
	case protocol.EngineShim:
		return shim.New(s.dir, s.spawning, &r)
	case protocol.EngineOCI:
		return oci.New(s.dir, s.spawning, &r)
	case protocol.EngineStage:
		return s.stage
	}
	// EngineLibcontainer, EngineLibcontainerStage and EngineCRIU.
	return s.libcontainer
}

// CompileSeccomp compiles a profile before the first container with it starts. Only the stage uses compiled profiles.
func (s *Selector) CompileSeccomp(ctx context.Context, profile *specs.LinuxSeccomp) error {
	return s.stage.CompileSeccomp(ctx, profile)
}

// Start chooses the engine of the request: a shim, an OCI runtime binary, a restore, or libcontainer. If the request
// names none, it chooses the stage if the stage supports everything that the container needs, and otherwise
// libcontainer.
func (s *Selector) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	register := l.Register
	l.Register = func(res runtime.Started) error {
		res.Setup.Reason = l.Reason
		return register(res)
	}
	r := c.Record()
	if r.Runtime != "" { // of a shim, or an OCI runtime
		if err := rawenv.Of(l.Spec.Process.Env).Refuse("the config.json of " + r.Runtime); err != nil {
			return err
		}
		if err := mountns.Mirror(sources(l.Spec)); err != nil {
			return err
		}
	}
	if r.Shim != nil {
		l.Reason = record.ShimSetup(r.Runtime).Reason
		return shim.New(s.dir, s.spawning, &r).Start(ctx, c, l)
	}
	if r.Runtime != "" {
		l.Reason = record.OCISetup(r.Runtime).Reason
		return oci.New(s.dir, s.spawning, &r).Start(ctx, c, l)
	}
	if err := s.libcontainer.Prepare(c, l); err != nil {
		return err
	}
	switch {
	case l.Restore != "":
		l.Reason = "its processes are restored from a checkpoint"
	case r.Choice == protocol.SetupLibcontainer:
		l.Reason = fmt.Sprintf("setup = %q is asked for", r.Choice)
	default:
		l.Reason = "it does all that this container needs"
		err := s.stage.Start(ctx, c, l)
		var declined *runtime.Declined
		if !errors.As(err, &declined) {
			return err
		}
		l.Reason = declined.Reason
	}
	if err := mountns.Mirror(sources(l.Spec)); err != nil {
		return err
	}
	return s.libcontainer.Start(ctx, c, l)
}

// sources are the paths that a container mounts.
func sources(s *specs.Spec) (paths []string) {
	for _, m := range s.Mounts {
		if m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
			paths = append(paths, filepath.Clean(m.Source))
		}
	}
	return paths
}

// Exec chooses the stage if the container's record has what the stage needs to join it, and libcontainer for execs that
// the stage declines. A container must not be able to bring that about, since it sees libcontainer's processes before
// they are confined.
func (s *Selector) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	r := c.Record()
	if r.Runtime != "" {
		if err := rawenv.Of(l.Process.Env).Refuse("the process.json of " + r.Runtime); err != nil {
			return err
		}
	}
	if r.Shim != nil {
		return s.of(c).Exec(ctx, c, l)
	}
	if r.Runtime != "" {
		return s.once(c, l, func() error { return s.of(c).Exec(ctx, c, l) })
	}
	if err := plan.CheckProcess(l.Process); err != nil {
		return err
	}
	if r.Join != nil && r.Choice != protocol.SetupLibcontainer {
		err := s.stage.Exec(ctx, c, l)
		var declined *runtime.Declined
		if !errors.As(err, &declined) {
			return err
		}
		c.Log().Debug("exec goes through libcontainer", "reason", declined.Reason)
	}
	return s.once(c, l, func() error { return s.libcontainer.Exec(ctx, c, l) })
}

// errUncertain is the error of an exec whose command an earlier keeper, which was killed, may have begun.
var errUncertain = fmt.Errorf("a keeper ended as the command was started: whether it has run is not known: %w",
	errdefs.ErrAborted)

// once runs an exec with an engine that cannot hold the process until it is in escrow. It makes a file, which stays if
// the keeper is killed during the exec. The next keeper then refuses the exec when the client repeats the call, because
// the command could run twice. The file is removed with the container at the latest.
func (s *Selector) once(c runtime.Container, l *runtime.Launch, exec func() error) error {
	mark := filepath.Join(s.dir.Bundle(c.ID()), "exec-"+l.ExecID)
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(mark), 0o700); err == nil {
			f, err = os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		}
	}
	if errors.Is(err, os.ErrExist) {
		err = errUncertain
		if rerr := os.Remove(mark); rerr != nil {
			c.Log().Warn("remove what a keeper that was killed has left of an exec", "error", rerr)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if rerr := errors.Join(f.Close(), os.Remove(mark)); rerr != nil {
			c.Log().Warn("remove the file of an exec that has begun", "error", rerr)
		}
	}()
	return exec()
}

// Begun asks the container's engine.
func (s *Selector) Begun(c runtime.Container) bool { return s.of(c).Begun(c) }

// Update asks the container's engine.
func (s *Selector) Update(ctx context.Context, c runtime.Container, r *specs.LinuxResources) error {
	return s.of(c).Update(ctx, c, r)
}

// Pause asks the container's engine.
func (s *Selector) Pause(ctx context.Context, c runtime.Container) error {
	return s.of(c).Pause(ctx, c)
}

// Resume asks the container's engine.
func (s *Selector) Resume(ctx context.Context, c runtime.Container) error {
	return s.of(c).Resume(ctx, c)
}

// Destroy asks the container's engine.
func (s *Selector) Destroy(ctx context.Context, c runtime.Container) error {
	return s.of(c).Destroy(ctx, c)
}

// Abort asks the container's engine.
func (s *Selector) Abort(ctx context.Context, c runtime.Container) error {
	return s.of(c).Abort(ctx, c)
}

// Freeze asks the container's engine, if that can make checkpoints.
func (s *Selector) Freeze(ctx context.Context, c runtime.Container) error {
	engine, err := s.checkpointer(c)
	if err != nil {
		return err
	}
	return engine.Freeze(ctx, c)
}

// Checkpoint asks the container's engine, if that can.
func (s *Selector) Checkpoint(ctx context.Context, c runtime.Container, d *runtime.Dump) error {
	engine, err := s.checkpointer(c)
	if err != nil {
		return err
	}
	return engine.Checkpoint(ctx, c, d)
}

func (s *Selector) checkpointer(c runtime.Container) (runtime.Checkpointer, error) {
	rec := c.Record()
	engine, ok := s.of(c).(runtime.Checkpointer)
	if !ok {
		return nil, fmt.Errorf("checkpoint of container %s by engine %s: %w", c.ID(), rec.Engine(),
			errdefs.ErrNotImplemented)
	}
	return engine, nil
}

// Signal asks the engine of a container in a sandbox.
func (s *Selector) Signal(ctx context.Context, c runtime.Container, sig unix.Signal, all bool) error {
	engine, err := s.signaller(c)
	if err != nil {
		return err
	}
	return engine.Signal(ctx, c, sig, all)
}

// KillExec asks the engine of a container in a sandbox.
func (s *Selector) KillExec(ctx context.Context, c runtime.Container, execID string, inner int) error {
	engine, err := s.signaller(c)
	if err != nil {
		return err
	}
	return engine.KillExec(ctx, c, execID, inner)
}

func (s *Selector) signaller(c runtime.Container) (runtime.Signaller, error) {
	rec := c.Record()
	engine, ok := s.of(c).(runtime.Signaller)
	if !ok {
		return nil, fmt.Errorf("signals to container %s in a sandbox by engine %s: %w", c.ID(), rec.Engine(),
			errdefs.ErrNotImplemented)
	}
	return engine, nil
}

// RemoveUnknown kills and removes everything of a container without a record. It assumes that a built-in engine has set
// the container up.
func (s *Selector) RemoveUnknown(ctx context.Context, c runtime.Container) error {
	return s.libcontainer.RemoveState(ctx, c, s.libcontainer.Destroy)
}
