package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/checkpoint"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/plugins"
	"berth/internal/pod/prepared"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// StartContainer starts a created container and returns when its own program runs. A program that cannot be started
// leaves the container exited, with the exit code that a shell would give (127 not found, 126 not executable, else
// 128).
func (m *Manager) StartContainer(ctx context.Context, id string) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	return m.startContainer(ctx, c, nil)
}

// firstClient is a client that is attached to a container before its program begins.
type firstClient struct {
	request *keeper.AttachRequest
	size    TermSize // of its terminal; zero: not known
}

// startContainer starts a container. first is a client that is attached before the program begins; nil: there is none.
func (m *Manager) startContainer(ctx context.Context, c *index.Container, first *firstClient) error {
	releasePod, err := c.LockPod(ctx, "start")
	if err != nil {
		return err
	}
	defer releasePod()
	release, err := m.lockContainer(ctx, c, "start")
	if err != nil {
		return err
	}
	defer release()
	defer m.prepared.Busy(prepared.LastPodStep)()

	st := &start{m: m, container: c, rec: c.Record(), pod: c.Sandbox.Record(), settings: m.settings.Load(), first: first}
	if err := st.check(); err != nil {
		return err
	}
	if err := st.announce(ctx); err != nil {
		return err
	}
	if st.rec.Restored != nil {
		defer m.checkpoints.Drop(c.ID())
	}
	if err := st.prepare(ctx); err != nil {
		return st.failed(ctx, err)
	}
	result, err := m.cfg.Keeper.Run(ctx, st.request())
	if err = m.dirs.Barred(&st.pod, err); err != nil {
		return st.failed(ctx, m.ofAgent(c, err))
	}
	steps.Trace(ctx, phases(result))
	if err := st.record(result); err != nil {
		// A container must not run if its record does not say so.
		m.teardown.StartFailed(ctx, c, err)
		return err
	}
	m.events.Tell(c.Sandbox, c.ID(), model.EventStarted)
	m.relay.Tell(ctx, nri.ContainerStarted, c.Sandbox, c)
	c.DropSpec()
	return nil
}

// start is one start of a container. Its methods are steps of it, in the order in which startContainer calls them. The
// caller holds the locks of the pod and the container.
type start struct {
	m         *Manager
	container *index.Container
	rec       record.Container // as it was before the start
	pod       record.Sandbox
	settings  *Settings
	first     *firstClient // nil: no client is attached before the program begins

	handler       Handler
	spec          *specs.Spec
	begin         time.Time
	pluginTimings []steps.Timing // how long NRI plugins took
}

// wrap adds the name of the container to an error of its start.
func (st *start) wrap(err error) error {
	return fmt.Errorf("start container %s (%s): %w", st.rec.Config.Metadata.Name, record.ShortID(st.rec.ID), err)
}

// check finds what the start needs, and changes nothing.
func (st *start) check() (err error) {
	if st.rec.Phase != record.ContainerCreated {
		return st.wrap(fmt.Errorf("it is %s: %w", st.rec.Phase, errdefs.ErrFailedPrecondition))
	}
	if st.pod.Phase != record.SandboxReady {
		return st.wrap(errSandboxNotReady)
	}
	if st.handler, err = st.settings.handlerOf(&st.pod); err != nil {
		return st.wrap(err)
	}
	if st.spec, err = st.container.LoadSpec(); err != nil {
		return st.wrap(err)
	}
	if options := st.rec.Config.Security.Namespaces; options.PID == model.NamespaceTarget {
		// The specification has the target's process ID, which is another process's once the target has ended: one of
		// another pod, or of the node.
		_, err := st.m.pidTarget(st.pod.ID, options.TargetID)
		if errdefs.IsNotFound(err) { // the container that is to be started exists
			err = fmt.Errorf("%v: %w", err, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return st.wrap(err)
		}
	}
	// An earlier version of Berth, which made the specification, may have mounted it elsewhere.
	st.spec.Root.Path = st.m.dirs.Rootfs(&st.pod, st.rec.ID)
	return nil
}

// announce claims the log file, records that the container is starting, and calls the NRI plugins. No plugin can join
// between the record and the call.
func (st *start) announce(ctx context.Context) error {
	m, c := st.m, st.container
	file, err := m.logs.Claim(c.ID(), st.rec.LogPath)
	if err != nil {
		return st.wrap(err)
	}
	held, release, present, err := m.relay.Hold(ctx)
	defer release()
	if err == nil {
		err = c.Update(record.Save, func(r *record.Container) { r.Phase, r.LogFile = record.ContainerStarting, file })
	}
	if err != nil {
		m.logs.Release(c.ID())
		return err
	}
	st.begin = time.Now()
	if present {
		err = m.relay.Ask(held, nri.StartContainer, c.Sandbox, c)
		st.pluginTimings = []steps.Timing{{Step: plugins.Step, Of: startStep, Begin: st.begin, Took: time.Since(st.begin)}}
	}
	release() // before plugins are told of a failure
	if err != nil {
		return st.failed(ctx, err)
	}
	return nil
}

// failed undoes the start of a container that is recorded as starting: the container is exited afterwards. It returns
// the error for the client.
func (st *start) failed(ctx context.Context, err error) error {
	st.m.teardown.StartFailed(ctx, st.container, err)
	return st.wrap(notStarted(err))
}

// prepare makes ready what the container needs of the node: its AppArmor profile, the log of a container that is
// restored from a checkpoint, and its devices.
func (st *start) prepare(ctx context.Context) error {
	if err := st.m.ensureProfile(ctx, st.spec.Process); err != nil {
		return err
	}
	if st.rec.Restored != nil {
		if err := checkpoints.ContinueLog(&st.rec); err != nil {
			st.m.log.Warn("the log of a restored container does not begin with the old one's",
				"container_id", st.rec.ID, "error", err)
		}
	}
	return st.m.devices.Prepare(ctx, st.container)
}

// request returns the request of the call Run to the keeper.
func (st *start) request() *keeper.RunRequest {
	r := &st.rec
	request := &keeper.RunRequest{
		ID:            r.ID,
		PodID:         r.SandboxID,
		Name:          r.Config.Metadata.Name,
		Spec:          st.spec,
		RuntimePath:   st.handler.RuntimePath,
		RuntimeRoot:   st.handler.RuntimeRoot,
		RuntimeFlags:  st.handler.RuntimeFlags,
		Shim:          st.handler.Shim,
		SystemdCgroup: st.m.cfg.SystemdCgroup,
		LogPath:       r.LogPath,
		LogLimits:     r.LogLimits,
		Stdin:         r.Config.Stdin,
		StdinOnce:     r.Config.StdinOnce,
		CRIU:          st.settings.CRIU,
	}
	if st.pod.SandboxContainer {
		request.Sandbox = st.pod.ID
	}
	if r.Restored != nil {
		request.Restore = filepath.Join(r.Restored.Dir, checkpoint.ImagesDir)
	}
	if st.handler.RuntimePath == "" {
		request.Setup = st.handler.Setup
	}
	if st.first != nil {
		request.Attach = st.first.request
		if size := st.first.size; r.Config.TTY && size.Width > 0 && size.Height > 0 {
			st.spec.Process.ConsoleSize = &specs.Box{Width: uint(size.Width), Height: uint(size.Height)}
		}
	}
	return request
}

// startStep is the name of the whole StartContainer in timings. The keeper's phases and the NRI plugins are parts of
// it.
const startStep = "start"

// record saves the result of the keeper: the container runs. It also saves how long the parts of the start took.
func (st *start) record(result *keeper.RunResult) error {
	timings := append([]steps.Timing{{Step: startStep, Begin: st.begin, Took: time.Since(st.begin)}}, st.pluginTimings...)
	timings = append(timings, phases(result)...)
	st.m.measureSteps("StartContainer", timings)
	return st.container.Update(record.Save, func(r *record.Container) {
		r.Phase = record.ContainerRunning
		r.PID = result.PID
		r.StartedAt = result.StartedAt
		r.Setup = result.Setup
		r.Timings = r.Timings.With(timings)
		if r.Restored != nil {
			restored := *r.Restored
			restored.At = result.StartedAt
			r.Restored = &restored
		}
	})
}

// phases are the phases of the start in the keeper.
func phases(result *keeper.RunResult) []steps.Timing {
	list := make([]steps.Timing, 0, len(result.Phases))
	for _, p := range result.Phases {
		list = append(list, steps.Timing{Step: p.Name, Of: startStep, Begin: p.Begin, Took: p.Took})
	}
	return list
}

// programError says why a program could not be started. It is errdefs.ErrFailedPrecondition and nothing else. The
// keeper's error is errdefs.ErrNotFound if the program is not in the image, and a client would understand that the
// container does not exist.
type programError struct{ text string }

func (e *programError) Error() string { return e.text }
func (e *programError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// notStarted returns the error for clients of a start that failed in the keeper.
func notStarted(err error) error {
	var start *keeper.StartError
	if errors.As(err, &start) {
		return &programError{err.Error()}
	}
	return err
}
