package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
	"berth/internal/cgroup"
	"berth/internal/codec"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/protocol"
)

// service translates RPCs.
type service struct {
	s *Server
}

func done(err error) (*api.Empty, error) {
	if err != nil {
		return nil, protocol.Encode(err)
	}
	return &api.Empty{}, nil
}

func (v *service) Info(context.Context, *api.InfoRequest) (*api.InfoResponse, error) {
	s := v.s
	return &api.InfoResponse{
		Version: s.cfg.Version, Pid: int32(os.Getpid()),
		Generation: s.identity.generation, Upgrades: s.identity.upgrades,
		Containers: int32(len(s.containers.all())), StartedAt: timestamppb.New(s.identity.startedAt),
		Features: []string{protocol.FeatureSetup, protocol.FeaturePrepare, protocol.FeatureAttachFirst,
			protocol.FeatureLogLimits, protocol.FeatureFreeze, protocol.FeatureSandbox,
			protocol.FeatureShim, protocol.FeatureRawEnv}, Counts: s.counts(),
	}, nil
}

func (v *service) Run(ctx context.Context, req *api.RunRequest) (*api.RunResponse, error) {
	res, err := v.s.run(ctx, req)
	return res, protocol.Encode(err)
}

func (v *service) Prepare(ctx context.Context, req *api.PrepareRequest) (*api.Empty, error) {
	profile := &specs.LinuxSeccomp{}
	if err := codec.Unmarshal(req.Seccomp, profile); err != nil {
		return done(fmt.Errorf("seccomp profile: %w: %w", err, errdefs.ErrInvalidArgument))
	}
	return done(v.s.runtime.CompileSeccomp(ctx, profile))
}

func (v *service) Signal(ctx context.Context, req *api.SignalRequest) (*api.Empty, error) {
	return done(v.s.signalContainer(ctx, req.Id, unix.Signal(req.Signal), req.All))
}

func (v *service) Delete(ctx context.Context, req *api.DeleteRequest) (*api.Empty, error) {
	return done(v.s.delete(ctx, req.Id, req.Withdrawn...))
}

func (v *service) Status(_ context.Context, req *api.ContainerRequest) (*api.ContainerStatus, error) {
	c, err := v.s.find(req.Id)
	if err != nil {
		return nil, protocol.Encode(err)
	}
	st := wireStatus(c.status())
	st.Paused = st.State == string(protocol.StateRunning) && cgroupdir.Frozen(c.Record().Cgroups)
	return st, nil
}

func (v *service) List(context.Context, *api.Empty) (*api.ListResponse, error) {
	res := &api.ListResponse{}
	for _, c := range v.s.containers.all() {
		res.Statuses = append(res.Statuses, wireStatus(c.status()))
	}
	return res, nil
}

func (v *service) Watch(ctx context.Context, req *api.WatchRequest, stream api.Keeper_WatchServer) error {
	return protocol.Encode(v.s.watch(ctx, req.WatchId, stream.Send))
}

func (v *service) Unwatch(_ context.Context, req *api.WatchRequest) (*api.Empty, error) {
	v.s.events.Quit(req.WatchId)
	return &api.Empty{}, nil
}

func (v *service) Exec(ctx context.Context, req *api.ExecRequest) (*api.ExecResponse, error) {
	res, err := v.s.exec(ctx, req)
	return res, protocol.Encode(err)
}

func (v *service) WaitExec(ctx context.Context, req *api.ExecID) (*api.ExecExit, error) {
	res, err := v.s.waitExec(ctx, req)
	return res, protocol.Encode(err)
}

func (v *service) KillExec(_ context.Context, req *api.KillExecRequest) (*api.Empty, error) {
	v.s.containers.withdrawn.add(req.Withdrawn)
	p, err := v.s.getExec(&api.ExecID{ContainerId: req.ContainerId, ExecId: req.ExecId})
	if err == nil {
		p.kill(false)
	}
	return done(err)
}

func (v *service) Attach(_ context.Context, req *api.AttachRequest) (*api.Empty, error) {
	defer v.s.deliveries.Discard(req.Token)
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	return done(v.s.attach(req))
}

func (s *Server) attach(req *api.AttachRequest) error {
	files, err := s.deliveries.Take(req.Token)
	if err != nil {
		return err
	}
	c, err := s.find(req.ContainerId)
	if err != nil {
		closeAll(files)
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.State != protocol.StateRunning || c.out == nil {
		closeAll(files)
		return fmt.Errorf("container %s is not running: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	return c.join(c.out, req, files)
}

// find finds a container. The error is ErrNotFound, or ErrUnavailable while it may yet be handed back.
func (s *Server) find(id string) (*container, error) {
	c, err := s.containers.get(id)
	if err != nil && s.adoption.mayReturn(id) {
		return nil, fmt.Errorf("container %s: %w", id, errHandback)
	}
	return c, err
}

// checkSpillDir refuses a directory that is relative to whatever the keeper's own is.
func checkSpillDir(req *api.AttachRequest) error {
	if req.SpillDir == "" || filepath.IsAbs(req.SpillDir) {
		return nil
	}
	return fmt.Errorf("directory %q for what client %s does not take is not absolute: %w", req.SpillDir, req.AttachId,
		errdefs.ErrInvalidArgument)
}

// join has what is read of the container's output from now on copied to a client's files, which it takes over. The
// caller holds c.mu.
func (c *container) join(out *logpump.Log, req *api.AttachRequest, files map[protocol.Role]int) error {
	if err := checkSpillDir(req); err != nil {
		closeAll(files)
		return err
	}
	keep := logpump.Keep{Dir: req.SpillDir, Backlog: req.Backlog, Total: req.TotalBacklog}
	stdout, stderr := file(files, protocol.RoleStdout), file(files, protocol.RoleStderr)
	closeAll(files) // what no client is given
	if err := out.Attach(req.AttachId, stdout, stderr, keep); err != nil {
		if errors.Is(err, os.ErrExist) && c.clients[req.AttachId] == req.Session {
			return nil // the same call made again
		}
		return fmt.Errorf("attach %s: %w", req.AttachId, errdefs.ErrAlreadyExists)
	}
	c.clients[req.AttachId] = req.Session
	if req.Stdin {
		c.owners[req.AttachId] = req.Session
	}
	if s := c.s; s.sessions.Get(req.Session) == nil {
		// The client may have been killed long before its container was set up. abandon has then looked for it, and found
		// nothing.
		time.AfterFunc(returnWait, func() { s.abandon(req.Session) })
	}
	return nil
}

func (v *service) Detach(_ context.Context, req *api.AttachID) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	c, err := v.s.find(req.ContainerId)
	if err == nil {
		err = c.detach(req.AttachId)
	}
	// The container may be removed in this moment, or be gone.
	if log := v.s.left.take(req.AttachId); log != nil && (err == nil || errors.Is(err, errdefs.ErrNotFound)) {
		err = detached(log.Detach(req.AttachId))
	}
	return done(err)
}

func (v *service) CloseStdin(_ context.Context, req *api.ContainerRequest) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	c, err := v.s.find(req.Id)
	if err == nil {
		c.closeStdin()
	}
	return done(err)
}

func (v *service) ReopenLog(_ context.Context, req *api.ContainerRequest) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	c, err := v.s.find(req.Id)
	if err != nil {
		return done(err)
	}
	c.mu.Lock()
	out, path := c.out, c.record.LogPath
	c.mu.Unlock()
	if out == nil || path == "" {
		return done(fmt.Errorf("container %s has no log: %w", req.Id, errdefs.ErrFailedPrecondition))
	}
	if err := out.Reopen(); err != nil {
		return done(fmt.Errorf("reopen log of container %s: %w", req.Id, err))
	}
	return done(nil)
}

// running calls fn with a running container, guarded against upgrades.
func (v *service) running(ctx context.Context, id string,
	fn func(context.Context, *container) error) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	c, err := v.s.find(id)
	if err != nil {
		return done(err)
	}
	c.mu.Lock()
	state := c.record.State
	c.mu.Unlock()
	if state != protocol.StateRunning {
		return done(fmt.Errorf("container %s is %s, not running: %w", id, state, errdefs.ErrFailedPrecondition))
	}
	return done(fn(ctx, c))
}

func (v *service) Update(ctx context.Context, req *api.UpdateRequest) (*api.Empty, error) {
	var res specs.LinuxResources
	if err := codec.Unmarshal(req.Resources, &res); err != nil {
		return done(fmt.Errorf("resources of container %s: %w: %w", req.Id, err, errdefs.ErrInvalidArgument))
	}
	return v.running(ctx, req.Id, func(ctx context.Context, c *container) error {
		if err := v.s.runtime.Update(ctx, c, &res); err != nil {
			return cgroup.Refused(err) // the caller names the container
		}
		return nil
	})
}

func (v *service) Pause(ctx context.Context, req *api.ContainerRequest) (*api.Empty, error) {
	return v.running(ctx, req.Id, func(ctx context.Context, c *container) error { return v.s.runtime.Pause(ctx, c) })
}

func (v *service) Resume(ctx context.Context, req *api.ContainerRequest) (*api.Empty, error) {
	return v.running(ctx, req.Id, func(ctx context.Context, c *container) error { return v.s.runtime.Resume(ctx, c) })
}

func (v *service) Checkpoint(ctx context.Context, req *api.CheckpointRequest) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	return done(v.s.checkpoint(ctx, req))
}

func (v *service) Freeze(ctx context.Context, req *api.FreezeRequest) (*api.Empty, error) {
	if err := v.s.gate.Begin(); err != nil {
		return done(err)
	}
	defer v.s.gate.End()
	return done(v.s.freeze(ctx, req))
}

func (v *service) EndCheckpoint(ctx context.Context, req *api.EndCheckpointRequest) (*api.Empty, error) {
	c, err := v.s.find(req.Id)
	if err != nil {
		return done(err)
	}
	thawed := c.Thawed()
	if err = v.s.thaw(c, req.Nonce); err == nil && thawed != nil {
		select {
		case <-thawed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return done(err)
}

func (v *service) Adopt(_ context.Context, req *api.AdoptRequest) (*api.Empty, error) {
	return done(v.s.adoption.adopt(req.Record, req.Token))
}

func (v *service) Adopted(context.Context, *api.Empty) (*api.Empty, error) {
	if v.s.adoption.escrowProcessLives() {
		go v.s.adoption.endHandbackAfterEscrowProcess()
	} else {
		v.s.adoption.endHandback()
	}
	return &api.Empty{}, nil
}

// upgradeStart is how long the answer to Upgrade has to leave before the connections close.
const upgradeStart = 5 * time.Millisecond

func (v *service) Upgrade(context.Context, *api.Empty) (*api.Empty, error) {
	if err := (&upgrade{v.s}).checkBinary(); err != nil {
		return done(fmt.Errorf("upgrade: %w", err))
	}
	time.AfterFunc(upgradeStart, func() { _ = (&upgrade{v.s}).replace() })
	return &api.Empty{}, nil
}
