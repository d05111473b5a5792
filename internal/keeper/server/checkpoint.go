package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/record"
)

// errGoneOn is what ends a checkpoint whose container has been let go on.
var errGoneOn = fmt.Errorf("the container has gone on before its files were copied: %w", errdefs.ErrFailedPrecondition)

// checkpoint freezes a container and writes its processes down. That it is frozen for this is in its row before it is, so
// that whichever keeper finds the row lets it go on.
func (s *Server) checkpoint(ctx context.Context, req *api.CheckpointRequest) error {
	for _, dir := range []string{req.Images, req.Work} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
		}
	}
	if req.Nonce == "" || req.TimeoutNanos <= 0 {
		return fmt.Errorf("a checkpoint without nonce or timeout: %w", errdefs.ErrInvalidArgument)
	}
	c, err := s.get(req.Id)
	if err != nil {
		return err
	}
	if err := c.standStill(req); err != nil {
		return err
	}
	timeout := time.Duration(req.TimeoutNanos)
	deadline := time.Now().Add(timeout)
	time.AfterFunc(timeout, func() { _ = s.goOn(c, req.Nonce) })
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err = s.dump(ctx, c, req); err != nil {
		if gerr := s.goOn(c, req.Nonce); gerr != nil && !errors.Is(gerr, errGoneOn) {
			c.log.Error("let a container go on after a checkpoint", "error", gerr)
		}
		return err
	}
	return nil
}

// standStill writes into the row that the container is being written down.
func (c *container) standStill(req *api.CheckpointRequest) error {
	c.mu.Lock()
	r := c.row
	c.mu.Unlock()
	switch {
	case r.State != keeper.StateRunning:
		return fmt.Errorf("container %s is %s, not running: %w", c.id, r.State, errdefs.ErrFailedPrecondition)
	case r.Runtime != "":
		return fmt.Errorf("checkpoint of container %s: its runtime is %s, and only those of the built-in runtime can be written down: %w",
			c.id, r.Runtime, errdefs.ErrNotImplemented)
	case cgroupdir.Frozen(r.Cgroups):
		return fmt.Errorf("container %s is paused: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	var err error
	c.change(func(r *record.Container) {
		if r.Checkpoint != "" {
			err = fmt.Errorf("a checkpoint of container %s is under way: %w", c.id, errdefs.ErrFailedPrecondition)
			return
		}
		r.Checkpoint, r.CheckpointBy = req.Nonce, req.Session
		c.still = make(chan struct{})
	})
	return err
}

func (s *Server) dump(ctx context.Context, c *container, req *api.CheckpointRequest) error {
	for _, dir := range []string{req.Images, req.Work} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return (&inProcess{s: s}).with(c, func(lib *libcontainer.Container) error {
		if err := lib.Pause(); err != nil {
			return fmt.Errorf("freeze container %s: %w", c.id, err)
		}
		end := s.orphans.Begin()
		defer end()
		_, err := s.callCRIU(ctx, c, &criuCall{CRIU: req.Criu, Images: req.Images, Work: req.Work}, stdio{}, nil)
		if err != nil {
			return fmt.Errorf("checkpoint of container %s: %w", c.id, err)
		}
		return nil
	})
}

// goOn lets a container go on that a checkpoint holds; an empty nonce is that of any.
func (s *Server) goOn(c *container, nonce string) error {
	c.mu.Lock()
	r, still := c.row, c.still
	if r.Checkpoint == "" || nonce != "" && r.Checkpoint != nonce {
		c.mu.Unlock()
		return errGoneOn
	}
	c.row.Checkpoint, c.still = "", nil
	c.mu.Unlock()
	cgroupdir.Unfreeze(r.Cgroups)
	c.change(func(r *record.Container) { r.CheckpointBy, r.CheckpointGroup = "", 0 })
	if still != nil {
		close(still)
	}
	return nil
}

// takeBack lets a container go on that another keeper has held: its criu, which freezes it again as it ends, first.
func (s *Server) takeBack(c *container) {
	c.mu.Lock()
	group := c.row.CheckpointGroup
	holds := c.row.Checkpoint != ""
	c.mu.Unlock()
	if !holds {
		return
	}
	s.watching.Go(func() {
		if group > 0 {
			for deadline := time.Now().Add(criuGrace); time.Now().Before(deadline) && len(criuOf(group)) > 0; {
				time.Sleep(10 * time.Millisecond)
			}
			for _, pid := range criuOf(group) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		_ = s.goOn(c, "")
	})
}

// standing is closed when the checkpoint ends that the container stands still for; nil: none does.
func (c *container) standing() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.still
}

// withoutCheckpoint is with, for what has to come after a checkpoint that is under way. Which ends: it has a deadline.
func (r *inProcess) withoutCheckpoint(c *container, fn func(*libcontainer.Container) error) error {
	for {
		var still chan struct{}
		err := r.with(c, func(lib *libcontainer.Container) error {
			if still = c.standing(); still != nil {
				return nil
			}
			return fn(lib)
		})
		if err != nil || still == nil {
			return err
		}
		<-still
	}
}

// restore makes a container from CRIU's images. Its processes go on at once, so what they write before they are in custody is
// in their pipes.
func (r *inProcess) restore(c *container, l *launch) error {
	const reason = "its processes are restored from a checkpoint"
	res := launched{console: -1, setup: keeper.Setup{
		Engine: keeper.EngineCRIU, Reason: reason, ExecEngine: keeper.EngineLibcontainer, ExecReason: reason,
	}}
	call := &criuCall{
		Restore: true, CRIU: l.criu, Images: l.restore, Work: filepath.Join(r.s.bundle(c.id), "criu"),
		Spec: l.spec, Systemd: c.row.Systemd,
	}
	if err := os.MkdirAll(call.Work, 0o700); err != nil {
		return err
	}
	var terminal *os.File
	sock := -1
	if l.spec.Process.Terminal {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socketpair", err)
		}
		sock, terminal = fds[0], os.NewFile(uintptr(fds[1]), "console")
		defer unix.Close(sock)
		defer terminal.Close()
	}
	got, err := r.s.callCRIU(context.Background(), c, call, l.io, terminal)
	if err == nil {
		res.pid = got.PID
		if l.spec.Process.NoNewPrivileges && mayGain(got.PID) {
			// It could when it was written down, or a CRIU wrote it down that does not look.
			err = fmt.Errorf("the checkpoint is of processes without no_new_privs, which the container asks for: %w", errdefs.ErrFailedPrecondition)
		}
		if sock >= 0 {
			_ = unix.SetNonblock(sock, true) // it has been sent by now
			var cerr error
			res.console, cerr = console.Receive(sock)
			err = errors.Join(err, cerr)
		}
		if err == nil {
			err = r.with(c, func(lib *libcontainer.Container) error {
				st, err := lib.State()
				if err == nil {
					res.cgroups = cgroupdir.Kept(st.CgroupPaths)
				}
				return err
			})
		}
		if err == nil {
			err = l.hold(res)
		} else if res.console >= 0 {
			unix.Close(res.console)
		}
		if err != nil {
			c.mu.Lock()
			held := c.held != nil
			c.mu.Unlock()
			if held {
				c.letGo() // which kills it
			} else {
				_ = unix.Kill(res.pid, unix.SIGKILL)
				_, _ = unix.Wait4(res.pid, nil, 0, nil)
			}
		}
	}
	if err == nil {
		return nil
	}
	if derr := r.destroy(context.Background(), c); derr != nil {
		c.log.Warn("remove container that was not restored", "error", derr)
	}
	return fmt.Errorf("restore container %s: %w", c.id, err)
}
