package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// removeWait bounds how long a container may take to die; Delete can be called again.
const removeWait = 10 * time.Second

// delete ends a container and removes all traces. It is idempotent.
func (s *Server) delete(ctx context.Context, id string, withdrawn ...string) error {
	if err := record.CheckID("container", id); err != nil {
		return err
	}
	if err := s.gate.Begin(); err != nil {
		return err
	}
	defer s.gate.End()
	s.containers.withdrawn.add(withdrawn...)
	c, err := s.containers.get(id)
	if err != nil {
		return s.deleteUnknown(ctx, id)
	}
	c.countRemoval(1)
	defer c.countRemoval(-1)
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	for tick := time.Millisecond; ; tick = min(2*tick, 100*time.Millisecond) {
		ended, err := c.killOnce(ctx, tick > 4*time.Millisecond)
		if ended {
			break
		}
		if err != nil {
			c.log.Warn("kill the container that is to be removed", "error", err)
		}
		select {
		case <-c.exited:
		case <-time.After(tick):
		case <-ctx.Done():
			return fmt.Errorf("container %s does not end%s: %w", id, c.sleeper(), context.DeadlineExceeded)
		}
	}
	return s.clean(ctx, c)
}

// countRemoval adds to the number of calls that remove the container.
func (c *container) countRemoval(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removals += n
}

// sleeper returns a clause about a process of the container that cannot be killed, because it waits in the kernel,
// mostly for a file system that does not answer. It returns nothing if there is no such process.
func (c *container) sleeper() string {
	c.mu.Lock()
	r := c.record
	c.mu.Unlock()
	if len(r.Cgroups) == 0 {
		r.Cgroups = cgroupdir.Recorded(c.cgroups(&r))
	}
	dir := cgroupdir.Members(r.Cgroups)
	if dir == "" {
		return ""
	}
	pids, _ := nested.Processes(dir)
	for _, pid := range pids {
		if f := procfs.Status(pid); len(f) > 0 && f[0] == "D" {
			return fmt.Sprintf(": process %d waits uninterruptibly, for a file system that does not answer or a device", pid)
		}
	}
	return ""
}

// cgroups are the directories of the container's cgroups in all hierarchies, by controller.
func (c *container) cgroups(r *record.Container) map[string]string {
	if r.Join != nil && len(r.Join.Cgroups) > 0 {
		return r.Join.Cgroups
	}
	m, err := cgroupdir.OfSpec(c.id, r.CgroupsPath, r.Systemd)
	if err != nil || m == nil {
		return r.Cgroups
	}
	return m.GetPaths()
}

// killOnce kills the processes that the container has now. ended means that its start has failed or that its init
// process has died. If the kernel kills all other processes with the init process, killOnce looks for them only if all
// is set.
func (c *container) killOnce(ctx context.Context, all bool) (ended bool, err error) {
	select {
	case <-c.exited:
		return true, nil
	default:
	}
	select {
	case <-c.started:
		if c.runErr != nil {
			return true, nil
		}
	default:
	}
	c.mu.Lock()
	paths, state := c.record.Cgroups, c.record.State
	all = all || c.record.Join == nil || !c.record.Join.OwnProcesses
	c.mu.Unlock()
	if state == protocol.StateStarting {
		return false, cgroupdir.KillSpec(c.id, c.record.CgroupsPath, c.record.Systemd)
	}
	if err := c.signal(ctx, unix.SIGKILL); err != nil {
		return false, err
	}
	cgroupdir.ThawKilled(paths)
	if !all {
		return false, nil
	}
	return false, cgroupdir.KillAll(paths)
}

// clean removes the cgroups, files, record and escrow of a container whose processes are dead.
func (s *Server) clean(ctx context.Context, c *container) error {
	end := s.orphans.BeginFor(c.id)
	defer end()
	c.mu.Lock()
	r := c.record
	var execs []*process
	for _, p := range c.execs {
		execs = append(execs, p)
	}
	c.mu.Unlock()
	for _, p := range execs {
		p.kill(false)
	}
	select {
	case <-c.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.runErr == nil {
		select {
		case <-c.flushed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := cgroupdir.KillAll(r.Cgroups); err != nil {
			return err
		}
		cgroupdir.ThawKilled(r.Cgroups)
		left := cgroupdir.RemoveNested(ctx, c.cgroups(&r))
		if err := s.runtime.Destroy(ctx, c); err != nil {
			return fmt.Errorf("remove container %s: %w", c.id, errors.Join(err, left))
		}
	}
	if r.Reaper {
		s.inits.removePodInit(&r)
	}
	if err := os.RemoveAll(s.dir().Bundle(c.id)); err != nil {
		return err
	}
	if err := c.forget(); err != nil {
		return err
	}
	c.mu.Lock()
	out := c.out
	if out != nil {
		s.left.keep(out, c.clients, s.sessions)
	}
	c.out, c.clients = nil, map[string]string{}
	c.mu.Unlock()
	s.containers.remove(c)
	if out != nil {
		out.Close()
	}
	s.escrow.release(c.id)
	for _, p := range execs {
		s.escrow.release(execKey(c.id, p.record.ExecID))
	}
	s.events.Publish(c.id)
	c.log.Info("container removed")
	return nil
}

// deleteUnknown removes everything that a crash may have left of a container that is not in the table.
func (s *Server) deleteUnknown(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	if err := s.adoption.finish(ctx, id); err != nil {
		return err
	}
	defer s.orphans.BeginFor(id)()
	c := s.newContainer(record.Container{ID: id, State: protocol.StateExited})
	if err := s.runtime.RemoveUnknown(ctx, c); err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	if err := os.RemoveAll(s.dir().Bundle(id)); err != nil {
		return err
	}
	if err := s.table.Forget(id); err != nil {
		return err
	}
	s.adoption.forgetLost(id)
	return nil
}

// signalContainer sends a signal to the init process or, if all is set, to every process. It waits for a start that is
// under way: the berthd that began the start may have been killed, and the next berthd sends the signal. For NoSignal
// it does nothing else.
func (s *Server) signalContainer(ctx context.Context, id string, sig unix.Signal, all bool) error {
	c, err := s.find(id)
	if err != nil {
		return err
	}
	if sig < protocol.NoSignal || sig > 64 {
		return fmt.Errorf("signal %d: %w", sig, errdefs.ErrInvalidArgument)
	}
	select {
	case <-c.started:
	case <-ctx.Done():
		return fmt.Errorf("container %s is starting: %w", id, ctx.Err())
	}
	if c.runErr != nil {
		return nil // it has never run
	}
	c.mu.Lock()
	paths, state, proxied := c.record.Cgroups, c.record.State, c.record.Proxied()
	if sig == unix.SIGKILL && c.record.Join != nil && c.record.Join.OwnProcesses {
		all = false // the kernel ends all others with the init process
	}
	c.mu.Unlock()
	if state == protocol.StateExited || sig == protocol.NoSignal {
		return nil
	}
	if all && proxied {
		return c.signalInSandbox(ctx, sig, true)
	}
	if all {
		err = cgroupdir.SignalAll(paths, sig)
	}
	// Somebody may have moved the init process out of the container's cgroups.
	if !all || sig == unix.SIGKILL {
		err = errors.Join(err, c.signal(ctx, sig))
	}
	if err != nil {
		return err
	}
	if sig == unix.SIGKILL {
		cgroupdir.ThawKilled(paths)
	}
	return nil
}
