package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/checkpoint"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/plugins"
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

// startContainer starts a container, with a client that is attached first; nil: none is.
func (m *Manager) startContainer(ctx context.Context, c *index.Container, first *firstClient) error {
	s := c.Sandbox
	releasePod, err := c.LockPod(ctx, "start")
	if err != nil {
		return err
	}
	defer releasePod()
	release, err := c.Lock(ctx, "start")
	if err != nil {
		return err
	}
	defer release()

	r, pod := c.Record(), s.Record()
	name := r.Config.Metadata.Name
	if r.Phase != record.ContainerCreated {
		return fmt.Errorf("start container %s (%s): it is %s: %w", name, record.ShortID(c.ID()), r.Phase,
			errdefs.ErrFailedPrecondition)
	}
	if pod.Phase != record.SandboxReady {
		return fmt.Errorf("start container %s (%s): %w", name, record.ShortID(c.ID()), errSandboxNotReady)
	}
	settings := m.settings.Load()
	handler, err := settings.handler(pod.RuntimeName())
	if err != nil {
		return err
	}
	spec, err := c.LoadSpec()
	if err != nil {
		return fmt.Errorf("start container %s (%s): %w", name, record.ShortID(c.ID()), err)
	}
	// an earlier version of Berth, which made the specification, may have mounted it elsewhere
	spec.Root.Path = m.dirs.Rootfs(&pod, c.ID())
	if err := m.logs.Claim(c.ID(), r.LogPath); err != nil {
		return err
	}
	held, let, present, err := m.relay.Hold(ctx)
	defer func() { let() }()
	if err == nil {
		err = c.Update(record.Save, func(r *record.Container) { r.Phase = record.ContainerStarting })
	}
	if err != nil {
		m.logs.Release(c.ID())
		return err
	}
	begin := time.Now()
	var asked []steps.Timing
	if present {
		err = m.relay.Ask(held, nri.StartContainer, s, c)
		asked = []steps.Timing{{Step: plugins.Step, Of: startStep, Begin: begin, Took: time.Since(begin)}}
	}
	let()
	if err != nil {
		m.teardown.StartFailed(ctx, c, err)
		return fmt.Errorf("start container %s (%s): %w", name, record.ShortID(c.ID()), err)
	}
	restore := ""
	if r.Restored != nil {
		restore = filepath.Join(r.Restored.Dir, checkpoint.ImagesDir)
		if err := checkpoints.ContinueLog(&r); err != nil {
			m.log.Warn("the log of a restored container does not begin with the old one's", "container_id", c.ID(), "error", err)
		}
		defer m.checkpoints.Drop(c.ID())
	}
	if err := m.devices.Prepare(ctx, c); err != nil {
		m.teardown.StartFailed(ctx, c, err)
		return fmt.Errorf("start container %s (%s): %w", name, record.ShortID(c.ID()), err)
	}
	request := m.runRequest(&r, spec, settings, handler, restore)
	if first != nil {
		request.Attach = first.request
		if size := first.size; r.Config.TTY && size.Width > 0 && size.Height > 0 {
			spec.Process.ConsoleSize = &specs.Box{Width: uint(size.Width), Height: uint(size.Height)}
		}
	}
	result, err := m.cfg.Keeper.Run(ctx, request)
	err = m.dirs.Barred(&pod, err)
	if err != nil {
		m.teardown.StartFailed(ctx, c, err)
		return fmt.Errorf("start container %s (%s): %w", name, record.ShortID(c.ID()), notStarted(err))
	}
	tracePhases(ctx, result.Phases)
	err = m.recordStart(c, result, begin, asked)
	if err != nil {
		// A container that no record calls running must not run.
		m.teardown.StartFailed(ctx, c, err)
		return err
	}
	m.events.Tell(s, c.ID(), model.EventStarted)
	m.relay.Tell(ctx, nri.ContainerStarted, s, c)
	c.DropSpec()
	return nil
}

// runRequest is what the keeper is asked to run. restore has CRIU's images of a container that is restored; else it
// is empty.
func (m *Manager) runRequest(r *record.Container, spec *specs.Spec, settings *Settings, handler Handler,
	restore string) *keeper.RunRequest {
	request := &keeper.RunRequest{
		ID:            r.ID,
		PodID:         r.SandboxID,
		Name:          r.Config.Metadata.Name,
		Spec:          spec,
		RuntimePath:   handler.RuntimePath,
		RuntimeRoot:   handler.RuntimeRoot,
		SystemdCgroup: m.cfg.SystemdCgroup,
		LogPath:       r.LogPath,
		Stdin:         r.Config.Stdin,
		StdinOnce:     r.Config.StdinOnce,
		Restore:       restore,
		CRIU:          settings.CRIU,
	}
	if handler.RuntimePath == "" {
		request.Setup = handler.Setup
	}
	return request
}

// startStep is what the parts of a start are parts of, in timings.
const startStep = "start"

// recordStart records that the container runs, as the keeper says, and how long the parts of its start took since
// begin.
func (m *Manager) recordStart(c *index.Container, result *keeper.RunResult, begin time.Time,
	asked []steps.Timing) error {
	timings := append([]steps.Timing{{Step: startStep, Begin: begin, Took: time.Since(begin)}}, asked...)
	for _, p := range result.Phases {
		timings = append(timings, steps.Timing{Step: p.Name, Of: startStep, Begin: p.Begin, Took: p.Took})
	}
	m.measureSteps("StartContainer", timings)
	return c.Update(record.Save, func(r *record.Container) {
		r.Phase = record.ContainerRunning
		r.PID = result.PID
		r.StartedAt = result.StartedAt
		r.Setup = result.Setup
		r.Timings = append(r.Timings[:len(r.Timings):len(r.Timings)], timings...)
		if r.Restored != nil {
			restored := *r.Restored
			restored.At = result.StartedAt
			r.Restored = &restored
		}
	})
}

// tracer makes the spans of traces. Without an OpenTelemetry provider, which the configuration sets, a span
// does nothing.
var tracer = otel.Tracer("berth/internal/pod")

// tracePhases makes spans of what the keeper says it did.
func tracePhases(ctx context.Context, phases []keeper.Phase) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	for _, p := range phases {
		_, span := tracer.Start(ctx, p.Name, trace.WithTimestamp(p.Begin))
		span.End(trace.WithTimestamp(p.Begin.Add(p.Took)))
	}
}

// programError is why a program could not be started. The keeper's error is errdefs.ErrNotFound where the program is
// not in the image, which a client would take for the container being gone. This one is errdefs.ErrFailedPrecondition
// and nothing else.
type programError struct{ text string }

func (e *programError) Error() string { return e.text }
func (e *programError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// notStarted is the error that clients get for a start that the keeper has refused.
func notStarted(err error) error {
	var start *keeper.StartError
	if errors.As(err, &start) {
		return &programError{err.Error()}
	}
	return err
}
