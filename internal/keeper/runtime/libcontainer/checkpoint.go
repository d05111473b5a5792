package libcontainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Freeze freezes a container for a checkpoint.
func (e *Engine) Freeze(ctx context.Context, c runtime.Container) error {
	return e.with(ctx, c, func(lib *libcontainer.Container) error {
		if err := withoutAgent(c, lib); err != nil {
			return err
		}
		return freeze(c, lib)
	})
}

// withoutAgent refuses the checkpoint of a container whose seccomp profile has an agent. CRIU restores the filter, and
// cannot give the agent a descriptor of it: each call that the agent was told of would fail with ENOSYS.
func withoutAgent(c runtime.Container, lib *libcontainer.Container) error {
	if p := lib.Config().Seccomp; notifies(p) {
		return fmt.Errorf("checkpoint of container %s: its seccomp profile has the agent at %s told of system calls, and "+
			"CRIU cannot give a restored filter to an agent: %w", c.ID(), p.ListenerPath, errdefs.ErrNotImplemented)
	}
	return nil
}

// freeze freezes a container, which may be frozen already.
func freeze(c runtime.Container, lib *libcontainer.Container) error {
	if st, err := lib.Status(); err == nil && st == libcontainer.Paused {
		return nil
	}
	if err := lib.Pause(); err != nil {
		return fmt.Errorf("freeze container %s: %w", c.ID(), err)
	}
	return nil
}

// Checkpoint freezes a container and has CRIU write its processes down.
func (e *Engine) Checkpoint(ctx context.Context, c runtime.Container, d *runtime.Dump) error {
	return e.with(ctx, c, func(lib *libcontainer.Container) error {
		if err := withoutAgent(c, lib); err != nil {
			return err
		}
		if err := freeze(c, lib); err != nil {
			return err
		}
		end := e.spawning()
		defer end()
		call := &criuCall{CRIU: d.CRIU, Images: d.Images, Work: d.Work, group: d.Group}
		_, err := e.callCRIU(ctx, c, call, runtime.Stdio{}, nil)
		return err
	})
}

// withoutCheckpoint is with, for what has to come after a checkpoint that is under way.
func (e *Engine) withoutCheckpoint(ctx context.Context, c runtime.Container,
	fn func(*libcontainer.Container) error) error {
	guard := c.Guard()
	if err := runtime.WithoutCheckpoint(ctx, c, guard.Lock, guard.Unlock); err != nil {
		if ctx.Err() != nil {
			return stage.ErrInterrupted
		}
		return err
	}
	defer guard.Unlock()
	lib, err := e.loaded(c)
	if err != nil {
		return err
	}
	return fn(lib)
}

// restore makes a container from CRIU's images. Its processes go on at once, so what they write before they are in
// escrow is in their pipes.
func (e *Engine) restore(c runtime.Container, l *runtime.Launch) error {
	res := runtime.Started{Console: -1, Setup: protocol.Setup{
		Engine: protocol.EngineCRIU, ExecEngine: protocol.EngineLibcontainer, ExecReason: l.Reason,
	}}
	call := &criuCall{
		Restore: true, CRIU: l.CRIU, Images: l.Restore, Work: filepath.Join(e.dir.Bundle(c.ID()), "criu"),
		Spec: l.Spec, Systemd: c.Record().Systemd,
	}
	if err := os.MkdirAll(call.Work, 0o700); err != nil {
		return err
	}
	sock, err := console.NewSocket(l.Terminal())
	if err != nil {
		return err
	}
	defer sock.Close()
	got, err := e.callCRIU(context.Background(), c, call, l.IO, sock.Theirs)
	if err == nil {
		res.PID = got.PID
		if l.Spec.Process.NoNewPrivileges && mayGain(got.PID) {
			// It could when it was written down, or a CRIU wrote it down that does not look.
			err = fmt.Errorf("the checkpoint is of processes without no_new_privs, which the container asks for: %w",
				errdefs.ErrFailedPrecondition)
		}
		if err == nil {
			res.Console, err = sock.Take(res.PID)
		}
		if err == nil {
			err = e.with(context.Background(), c, func(lib *libcontainer.Container) error {
				st, err := lib.State()
				if err != nil {
					return err
				}
				res.Cgroups = cgroupdir.Recorded(st.CgroupPaths)
				return scoreRestored(lib, res.PID, l.Spec)
			})
		}
		if err == nil {
			err = l.Register(res)
		} else if res.Console >= 0 {
			unix.Close(res.Console)
		}
		if err != nil {
			if !l.Unregister() { // which kills it
				_ = unix.Kill(res.PID, unix.SIGKILL)
				_, _ = unix.Wait4(res.PID, nil, 0, nil)
			}
		}
	}
	if err == nil {
		return nil
	}
	if derr := e.Destroy(context.Background(), c); derr != nil {
		c.Log().Warn("remove container that was not restored", "error", derr)
	}
	return fmt.Errorf("restore container %s: %w", c.ID(), err)
}

// scoreRestored gives restored processes the oom_score_adj that the specification asks for. CRIU gives a process what
// it had, unless that was 0: then the process has what it inherits, which is the keeper's. A process with a higher
// score than the init process has raised its own, since it shall be killed before others, and keeps it.
func scoreRestored(lib *libcontainer.Container, init int, spec *specs.Spec) error {
	score := 0
	if wanted := spec.Process.OOMScoreAdj; wanted != nil {
		score = *wanted
	}
	initial, err := oomScore(init)
	if err != nil {
		return err
	}
	for range 2 { // processes may be forked meanwhile
		pids, err := lib.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			had, err := oomScore(pid)
			if err == nil && had != score && (had <= initial || had < score) {
				err = os.WriteFile(oomScoreFile(pid), []byte(strconv.Itoa(score)), 0)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

func oomScoreFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

func oomScore(pid int) (int, error) {
	text, err := os.ReadFile(oomScoreFile(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}
