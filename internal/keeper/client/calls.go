package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
	"berth/internal/codec"
	"berth/internal/keeper/protocol"
	"berth/internal/loglimit"
	"berth/internal/rawenv"
)

// escrowWait is how long after the answer to Run the container's descriptors may take to arrive in escrow.
const escrowWait = 5 * time.Second

// Run creates and starts a container. If its program cannot be started, the error is a *StartError. If the context ends
// first, the keeper continues with the start; Delete ends it.
func (c *Client) Run(ctx context.Context, req *RunRequest) (*RunResult, error) {
	if err := c.room(protocol.RoomForContainer); err != nil {
		return nil, fmt.Errorf("container %s: %w", req.ID, err)
	}
	spec, err := rawenv.MarshalSpec(req.Spec)
	if err != nil {
		return nil, fmt.Errorf("spec of container %s: %w: %w", req.ID, err, errdefs.ErrInvalidArgument)
	}
	in := &api.RunRequest{
		Id: req.ID, Nonce: rand.Text(), PodId: req.PodID, Name: req.Name, Spec: spec, RuntimePath: req.RuntimePath,
		RuntimeRoot: req.RuntimeRoot, SystemdCgroup: req.SystemdCgroup, LogPath: req.LogPath, Stdin: req.Stdin,
		StdinOnce: req.StdinOnce, Reaper: req.Reaper, Restore: req.Restore, Criu: req.CRIU, Setup: string(req.Setup),
		Sandbox: req.Sandbox, RuntimeFlags: req.RuntimeFlags,
	}
	if req.Shim != nil {
		in.Shim = &api.Shim{OptionsType: req.Shim.OptionsType, Options: req.Shim.Options}
	}
	if l := req.LogLimits; l != (loglimit.Limits{}) && req.LogPath != "" {
		in.LogLimits = &api.LogLimits{
			MaxSize: l.MaxSize, MaxFiles: int32(l.MaxFiles), Rate: l.Rate, Burst: l.Burst, Over: string(l.Over),
		}
	}
	var res *api.RunResponse
	err = c.call(ctx, func(conn *connection) error {
		if req.Setup == SetupLibcontainer {
			// A connection is to one version of the keeper: an upgrade breaks it.
			if err := conn.require(FeatureSetup, fmt.Sprintf("setup %q of a container", req.Setup)); err != nil {
				return err
			}
		}
		if req.Sandbox != "" || len(req.RuntimeFlags) > 0 {
			if err := conn.require(FeatureSandbox, "a container in a sandbox, or flags of a runtime"); err != nil {
				return err
			}
		}
		if in.Shim != nil {
			if err := conn.require(FeatureShim, "a container of a shim"); err != nil {
				return err
			}
		}
		if err := conn.requireRawEnv(req.Spec.Process); err != nil {
			return err
		}
		if in.LogLimits != nil {
			if err := conn.require(FeatureLogLimits, "limits of a container's log"); err != nil {
				return err
			}
		}
		var err error
		if req.Attach != nil {
			if err := conn.require(protocol.FeatureAttachFirst, "a client of a container that has yet to start"); err != nil {
				return err
			}
			if in.Attach, err = c.attachment(conn, req.Attach); err != nil {
				return err
			}
		}
		res, err = conn.api.Run(ctx, in)
		return err
	})
	if err != nil {
		if ctx.Err() != nil { // the keeper is not told, and may have yet to read the call
			c.cut(req.ID, in.Nonce)
		}
		return nil, err
	}
	if res.Error != nil {
		return nil, &StartError{ExitCode: int(res.Error.ExitCode), Message: res.Error.Message}
	}
	if !c.cfg.NoEscrow {
		c.awaitEscrow(ctx, req.ID)
	}
	result := &RunResult{PID: int(res.Pid), StartedAt: res.StartedAt.AsTime(), Setup: setup(res.Setup)}
	for _, p := range res.Phases {
		result.Phases = append(result.Phases, Phase{p.Name, p.Begin.AsTime(), p.Took.AsDuration()})
	}
	return result, nil
}

// WarmUp looks at the types of the messages of a container's life before the first one begins.
func WarmUp() { codec.Messages(protocol.Usual...) }

// Prepare has the keeper compile a seccomp profile before a container has it. A keeper that is too old for this call
// compiles it with the first container.
func (c *Client) Prepare(ctx context.Context, profile *specs.LinuxSeccomp) error {
	b, err := codec.Marshal(profile)
	if err != nil {
		return fmt.Errorf("seccomp profile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return c.call(ctx, func(conn *connection) error {
		if !slices.Contains(conn.keeper.GetFeatures(), protocol.FeaturePrepare) {
			return nil
		}
		_, err := conn.api.Prepare(ctx, &api.PrepareRequest{Seccomp: b})
		return err
	})
}

// room is nil where there are descriptors left for what is about to start, which is to be in escrow here.
func (c *Client) room(wanted int) error {
	if c.cfg.NoEscrow {
		return nil
	}
	return protocol.Room(wanted)
}

// awaitEscrow waits until a container that has started is in escrow, so that Input finds it. One that has ended in
// the meantime is not in escrow.
func (c *Client) awaitEscrow(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, escrowWait)
	defer cancel()
	for {
		ok, changed := c.escrow.has(id)
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
			if st, err := c.Status(ctx, id); err != nil || st.State == StateExited {
				return
			}
		}
	}
}

// Signal sends a signal to a container's init process or, if all, to every process. It is nil if it has exited. A
// signal other than SIGKILL is sent once: a program may take a second one for another order. If the keeper dies in a
// call and it is not known whether the signal has been sent, the error is errdefs.ErrAborted.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("signal %d: %w", sig, errdefs.ErrInvalidArgument)
	}
	signal := func(conn *connection, sig syscall.Signal) error {
		_, err := conn.api.Signal(ctx, &api.SignalRequest{Id: id, Signal: int32(sig), All: all})
		return err
	}
	if sig == syscall.SIGKILL {
		return c.call(ctx, func(conn *connection) error { return signal(conn, sig) })
	}
	if !all {
		// The process is in escrow here, where no keeper can die between the signal and the answer. The keeper only says
		// that the program has begun, which it may be asked again.
		err := c.call(ctx, func(conn *connection) error { return signal(conn, protocol.NoSignal) })
		earlier := errors.Is(err, errdefs.ErrInvalidArgument) // a keeper of an earlier version knows no NoSignal
		if err != nil && !earlier {
			return err
		}
		if !earlier && c.escrow.signal(id, sig) {
			return nil
		}
	}
	sent := false
	return c.call(ctx, func(conn *connection) error {
		if sent {
			return fmt.Errorf("signal %d to container %s: the keeper ended, and may have sent it before: %w", sig, id,
				errdefs.ErrAborted)
		}
		err := signal(conn, sig)
		sent = broken(protocol.Decode(err))
		return err
	})
}

// Delete kills what lives of a container and removes its cgroup and all traces. An unknown one is no error.
func (c *Client) Delete(ctx context.Context, id string) error {
	c.mu.Lock()
	withdrawn := c.cutOff[id]
	c.mu.Unlock()
	err := c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Delete(ctx, &api.DeleteRequest{Id: id, Withdrawn: withdrawn})
		return err
	})
	if err == nil && len(withdrawn) > 0 {
		c.mu.Lock()
		delete(c.cutOff, id)
		c.mu.Unlock()
	}
	return err
}

// cut remembers for Delete that a Run was given up.
func (c *Client) cut(id, nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutOff == nil {
		c.cutOff = map[string][]string{}
	}
	c.cutOff[id] = append(c.cutOff[id], nonce)
}

// Status asks for a container's status. Only this call looks whether the container is paused.
func (c *Client) Status(ctx context.Context, id string) (*Status, error) {
	var st Status
	err := c.call(ctx, func(conn *connection) error {
		res, err := conn.api.Status(ctx, &api.ContainerRequest{Id: id})
		if err == nil {
			st = status(res)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &st, nil
}

// List is the whole table, in no order. Paused is not looked up.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	var list []Status
	err := c.call(ctx, func(conn *connection) error {
		res, err := conn.api.List(ctx, &api.Empty{})
		if err != nil {
			return err
		}
		list = make([]Status, 0, len(res.Statuses))
		for _, st := range res.Statuses {
			list = append(list, status(st))
		}
		return nil
	})
	return list, err
}

// Watch calls fn with an event for every container, and then for each change, until the context ends. It continues
// after the keeper was upgraded or killed: then there is an event for every container again, and for each that is gone.
// Of several changes in quick succession only the last may cause an event.
func (c *Client) Watch(ctx context.Context, fn func(Event)) error {
	known := map[string]bool{}
	return c.call(ctx, func(conn *connection) error {
		id := rand.Text()
		stream, err := conn.api.Watch(ctx, &api.WatchRequest{WatchId: id})
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(c.ctx, abandonWait)
			defer cancel()
			_, _ = conn.api.Unwatch(ctx, &api.WatchRequest{WatchId: id})
		}()
		seen := map[string]bool{}
		for {
			e, err := stream.Recv()
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return err
			}
			if e.Synced {
				for id := range known {
					if !seen[id] {
						delete(known, id)
						fn(Event{Status: Status{ID: id}, Gone: true})
					}
				}
				continue
			}
			seen[e.Status.Id] = true
			if known[e.Status.Id] = true; e.Gone {
				delete(known, e.Status.Id)
			}
			fn(Event{Status: status(e.Status), Gone: e.Gone})
		}
	})
}

// Exec starts a further process in a running container. A program that cannot be started is a *StartError; a container
// that does not run, or is paused, is ErrFailedPrecondition.
func (c *Client) Exec(ctx context.Context, req *ExecRequest) (*ExecResult, error) {
	if err := c.room(protocol.RoomForExec); err != nil {
		return nil, fmt.Errorf("exec %s: %w", req.ExecID, err)
	}
	process, err := rawenv.MarshalProcess(req.Process)
	if err != nil {
		return nil, fmt.Errorf("process of exec %s: %w: %w", req.ExecID, err, errdefs.ErrInvalidArgument)
	}
	in := &api.ExecRequest{
		ContainerId: req.ContainerID, ExecId: req.ExecID, Nonce: rand.Text(), Process: process, Session: c.session,
		TimeoutNanos: int64(req.Timeout), Width: uint32(req.Width), Height: uint32(req.Height),
	}
	for _, f := range []*os.File{req.Stdin, req.Stdout, req.Stderr} {
		if err := setBlocking(f); err != nil {
			return nil, fmt.Errorf("streams of exec %s: %w", req.ExecID, err)
		}
	}
	if req.Process.Terminal {
		defer c.awaitConsole(req.ContainerID + "/" + req.ExecID)()
	}
	var res *api.ExecResponse
	again := false
	err = c.call(ctx, func(conn *connection) error {
		if again && c.escrow.isRefused(req.ContainerID+"/"+req.ExecID) {
			return fmt.Errorf("exec %s: %w", req.ExecID, errUncertain)
		}
		again = true
		err := conn.requireRawEnv(req.Process)
		if err != nil {
			return err
		}
		if in.Token, err = sendFiles(conn, map[protocol.Role]*os.File{
			protocol.RoleStdin: req.Stdin, protocol.RoleStdout: req.Stdout, protocol.RoleStderr: req.Stderr,
		}); err != nil {
			return err
		}
		res, err = conn.api.Exec(ctx, in)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			c.abandonExec(in)
		}
		return nil, err
	}
	if res.Error != nil {
		return nil, &StartError{ExitCode: int(res.Error.ExitCode), Message: res.Error.Message}
	}
	if !c.cfg.NoEscrow {
		c.escrow.began(req.ContainerID + "/" + req.ExecID)
	}
	out := &ExecResult{PID: int(res.Pid)}
	if req.Process.Terminal {
		if out.Console, err = c.console(ctx, req.ContainerID+"/"+req.ExecID); err != nil {
			c.abandonExec(in)
			return nil, err
		}
	}
	return out, nil
}

// errUncertain is the error of an exec that a keeper which has died may have begun, and that the next keeper has
// refused to take back. It is not made again: a command runs once at most.
var errUncertain = fmt.Errorf("the keeper ended, and the next one does not know whether the command has run: %w",
	errdefs.ErrAborted)

// abandonWait limits how long a call continues after its caller has given up, so that the call can undo its work.
const abandonWait = 2 * time.Second

// abandonExec kills an exec that nobody waits for any more. The keeper is not told when a call is cancelled, and may
// have yet to read the call: then it refuses it.
func (c *Client) abandonExec(req *api.ExecRequest) {
	ctx, cancel := context.WithTimeout(c.ctx, abandonWait)
	defer cancel()
	err := c.killExec(ctx, &api.KillExecRequest{
		ContainerId: req.ContainerId, ExecId: req.ExecId, Withdrawn: req.Nonce,
	})
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		c.log.Warn("kill an exec whose caller has given up", "container_id", req.ContainerId, "error", err)
	}
}

// setBlocking takes O_NONBLOCK, which os.Pipe sets, from what becomes a program's standard stream: few bear it.
func setBlocking(f *os.File) error {
	if f == nil {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetNonblock(int(fd), false) }); err != nil {
		return err
	}
	return os.NewSyscallError("fcntl", set)
}

// sendFiles sends files for a call and returns the token that the call names.
func sendFiles(conn *connection, files map[protocol.Role]*os.File) (string, error) {
	p := &protocol.Packet{Kind: protocol.Files, Token: rand.Text()}
	defer p.CloseFiles()
	for role, f := range files {
		if f == nil {
			continue
		}
		raw, err := f.SyscallConn()
		if err != nil {
			return "", err
		}
		// A duplicate: File.Fd would take the file out of the poller.
		var n int
		var derr error
		if err := raw.Control(func(fd uintptr) { n, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
			return "", err
		}
		if derr != nil {
			return "", os.NewSyscallError("dup", derr)
		}
		p.Roles, p.FDs = append(p.Roles, role), append(p.FDs, n)
	}
	if len(p.FDs) == 0 {
		return "", nil
	}
	return p.Token, conn.fds.Send(p)
}

// WaitExec waits for an exec to end. Its end is known for some minutes, or half a minute after it was asked for.
func (c *Client) WaitExec(ctx context.Context, containerID, execID string) (*ExecExit, error) {
	var exit ExecExit
	err := c.call(ctx, func(conn *connection) error {
		res, err := conn.api.WaitExec(ctx, &api.ExecID{ContainerId: containerID, ExecId: execID})
		if err == nil {
			exit = ExecExit{ExitCode: int(res.ExitCode), TimedOut: res.TimedOut}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if !c.cfg.NoEscrow {
		c.escrow.taken(containerID + "/" + execID)
	}
	return &exit, nil
}

// KillExec kills an exec with all that it has started and that can still be told to be its own: its session and
// descendants, and with a timeout set also what has left these.
func (c *Client) KillExec(ctx context.Context, containerID, execID string) error {
	return c.killExec(ctx, &api.KillExecRequest{ContainerId: containerID, ExecId: execID})
}

func (c *Client) killExec(ctx context.Context, req *api.KillExecRequest) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.KillExec(ctx, req)
		return err
	})
}

// Attach has what a container writes from now on copied to the files. The caller closes its own.
func (c *Client) Attach(ctx context.Context, req *AttachRequest) error {
	return c.call(ctx, func(conn *connection) error {
		in, err := c.attachment(conn, req)
		if err != nil {
			return err
		}
		_, err = conn.api.Attach(ctx, in)
		return err
	})
}

// attachment sends the files of a client that is to be attached, and returns the request that names them.
func (c *Client) attachment(conn *connection, req *AttachRequest) (*api.AttachRequest, error) {
	token, err := sendFiles(conn, map[protocol.Role]*os.File{protocol.RoleStdout: req.Stdout,
		protocol.RoleStderr: req.Stderr})
	return &api.AttachRequest{
		ContainerId: req.ContainerID, AttachId: req.AttachID, Session: c.session, Token: token, Stdin: req.Stdin,
		Backlog: req.Backlog, TotalBacklog: req.TotalBacklog, SpillDir: req.SpillDir,
	}, err
}

// Detach cuts off an attached client. Where the container's input was for one client only (RunRequest.StdinOnce) and
// this one had brought it, the container reads its end. ErrResourceExhausted tells why the keeper had cut it off
// before; ErrNotFound that the keeper does not know the client: the one that had copied the output for it is gone.
func (c *Client) Detach(ctx context.Context, containerID, attachID string) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Detach(ctx, &api.AttachID{ContainerId: containerID, AttachId: attachID})
		return err
	})
}

// Input is the container's standard input.
func (c *Client) Input(id string) (*Input, error) { return c.escrow.input(id) }

// CloseStdin closes the ends of a container's input that the keeper and this client's escrow have. A terminal has none
// to close.
func (c *Client) CloseStdin(ctx context.Context, id string) error {
	c.escrow.release(id, []protocol.Role{protocol.RoleStdin})
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.CloseStdin(ctx, &api.ContainerRequest{Id: id})
		return err
	})
}

// ReopenLog makes the keeper write to the file that has the log's name now. It returns when that is open.
func (c *Client) ReopenLog(ctx context.Context, id string) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.ReopenLog(ctx, &api.ContainerRequest{Id: id})
		return err
	})
}

// Update lays the resources that are set over those that a running container has.
func (c *Client) Update(ctx context.Context, id string, r *specs.LinuxResources) error {
	js, err := codec.Marshal(r)
	if err != nil {
		return err
	}
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Update(ctx, &api.UpdateRequest{Id: id, Resources: js})
		return err
	})
}

// Pause freezes a running container. One that is paused already is no error.
func (c *Client) Pause(ctx context.Context, id string) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Pause(ctx, &api.ContainerRequest{Id: id})
		return err
	})
}

// Resume lets a paused container run again. It does nothing if the container is not paused.
func (c *Client) Resume(ctx context.Context, id string) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Resume(ctx, &api.ContainerRequest{Id: id})
		return err
	})
}

// Freeze freezes a container for a checkpoint, whose request has the nonce that is returned. It stays frozen until thaw
// is called, or the time is up. ErrNotImplemented: the keeper is of an earlier version that cannot do that.
func (c *Client) Freeze(ctx context.Context, id string,
	timeout time.Duration) (nonce string, thaw func(context.Context) error, err error) {
	nonce = rand.Text()
	err = c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Freeze(ctx, &api.FreezeRequest{
			Id: id, Nonce: nonce, Session: c.session, TimeoutNanos: int64(timeout),
		})
		return err
	})
	return nonce, func(ctx context.Context) error { return c.endCheckpoint(ctx, id, nonce) }, err
}

// Checkpoint freezes a container and writes its processes down. It stays frozen until the function that is returned is
// called, whose error says that it was thawed before: because the time was up, or the keeper has changed. When
// Checkpoint fails, the container is thawed.
func (c *Client) Checkpoint(ctx context.Context, req *CheckpointRequest) (thaw func(context.Context) error, err error) {
	nonce := cmp.Or(req.Nonce, rand.Text())
	err = c.call(ctx, func(conn *connection) error {
		_, err := conn.api.Checkpoint(ctx, &api.CheckpointRequest{
			Id: req.ID, Nonce: nonce, Session: c.session, Images: req.Images, Work: req.Work,
			TimeoutNanos: int64(req.Timeout), Criu: req.CRIU, Frozen: req.Nonce != "",
		})
		return err
	})
	return func(ctx context.Context) error { return c.endCheckpoint(ctx, req.ID, nonce) }, err
}

// EndCheckpoint thaws a container that is frozen for a checkpoint. One that is not is no error.
func (c *Client) EndCheckpoint(ctx context.Context, id string) error {
	err := c.endCheckpoint(ctx, id, "")
	if errors.Is(err, errdefs.ErrFailedPrecondition) || errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	return err
}

func (c *Client) endCheckpoint(ctx context.Context, id, nonce string) error {
	return c.call(ctx, func(conn *connection) error {
		_, err := conn.api.EndCheckpoint(ctx, &api.EndCheckpointRequest{Id: id, Nonce: nonce})
		return err
	})
}

// Upgrade makes the keeper execute its binary in place, and returns when the new one answers.
func (c *Client) Upgrade(ctx context.Context) error {
	before, err := c.Info(ctx)
	if err != nil {
		return err
	}
	conn, err := c.wait(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.api.Upgrade(ctx, &api.Empty{}); err != nil && !broken(err) {
		return protocol.Decode(err)
	}
	select {
	case <-conn.closed:
	case <-ctx.Done():
		return fmt.Errorf("upgrade of the keeper: %w", ctx.Err())
	}
	now, err := c.Info(ctx)
	switch {
	case err != nil:
		return err
	case now.Generation != before.Generation:
		return errors.New("upgrade of the keeper: it died; another one was started")
	case now.Upgrades == before.Upgrades:
		return errors.New("upgrade of the keeper: the program could not be executed; see its log")
	}
	return nil
}

// Info tells about the keeper.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	var info Info
	err := c.call(ctx, func(conn *connection) error {
		res, err := conn.api.Info(ctx, &api.InfoRequest{})
		if err == nil {
			info = Info{
				Version: res.Version, PID: int(res.Pid), Generation: res.Generation, Upgrades: int(res.Upgrades),
				Containers: int(res.Containers), StartedAt: moment(res.StartedAt), Features: res.Features,
			}
			if n := res.Counts; n != nil {
				info.Counts = &Counts{
					Execs: int(n.Execs), Holders: int(n.Holders), Queue: int(n.Queue), Backlog: n.Backlog,
					LogBytes: n.LogBytes, LogLinesCut: n.LogLinesCut, LogDropped: n.LogDropped,
					LogRotations: n.LogRotations, LogRemovedBytes: n.LogRemovedBytes, LogLimitedLines: n.LogLimitedLines,
					LogLimitedBytes: n.LogLimitedBytes, LogHeld: n.LogHeld.AsDuration(),
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &info, nil
}

func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func status(st *api.ContainerStatus) Status {
	return Status{
		ID: st.Id, PodID: st.PodId, State: State(st.State), PID: int(st.Pid), StartedAt: moment(st.StartedAt),
		FinishedAt: moment(st.FinishedAt), ExitCode: int(st.ExitCode), OOMKilled: st.OomKilled, Lost: st.Lost,
		LogDone: st.LogDone, Orphan: st.Orphan, Paused: st.Paused, Setup: setup(st.Setup),
	}
}

func setup(s *api.Setup) Setup {
	return Setup{
		Engine: Engine(s.GetEngine()), Reason: s.GetReason(), ExecEngine: Engine(s.GetExecEngine()),
		ExecReason: s.GetExecReason(),
	}
}
