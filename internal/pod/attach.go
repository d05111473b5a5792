package pod

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"berth/internal/audit"
	keeper "berth/internal/keeper/client"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/pod/stdio"
	"berth/internal/undo"
)

// Attach joins the caller's streams to a running container's own until the container ends, the output's reader goes,
// or ctx ends. Any number of callers may be attached at once. One that takes so little of the output that the keeper
// has cut it off gets ErrResourceExhausted; one whose output was copied by a keeper that was killed gets
// ErrUnavailable.
func (m *Manager) Attach(ctx context.Context, id string, opts AttachOptions) error {
	a := &attachment{m: m, opts: opts, phase: record.ContainerRunning}
	return a.run(ctx, id, func() error {
		if err := m.cfg.Keeper.Attach(ctx, a.request); err != nil {
			return a.wrap(err)
		}
		return nil
	})
}

// StartAttached starts a created container and joins the caller's streams to its own, as Attach does. The caller is
// attached before the program begins, and gets all that it writes. size is that of its terminal, zero if it is not
// known.
func (m *Manager) StartAttached(ctx context.Context, id string, size TermSize, opts AttachOptions) error {
	a := &attachment{m: m, opts: opts, phase: record.ContainerCreated}
	return a.run(ctx, id, func() error { return m.startContainer(ctx, a.container, &firstClient{a.request, size}) })
}

// attachment is one client that is attached to a container.
type attachment struct {
	m     *Manager
	opts  AttachOptions
	phase record.ContainerPhase // in which the container has to be

	container *index.Container
	rec       record.Container
	request   *keeper.AttachRequest
	out       stdio.Outputs
	input     *keeper.Input // nil: nothing is sent to the container
	inputDone chan struct{} // closed when the client's input has ended
	done      chan struct{} // closed when the client goes
	// killed is closed when the keeper that copies the output was killed, and keeps the output open nevertheless.
	killed <-chan struct{}
}

func (a *attachment) wrap(err error) error {
	return fmt.Errorf("attach to container %s: %w", record.ShortID(a.container.ID()), err)
}

// run attaches the client with a function that asks the keeper for it, and waits until it goes.
func (a *attachment) run(ctx context.Context, id string, ask func() error) (err error) {
	if a.container, err = a.m.index.Container(id); err != nil {
		return err
	}
	a.rec = a.container.Record()
	ended := a.m.auditor().container(ctx, a.container.ID(),
		audit.Operation{Kind: audit.Attach, Stdin: a.opts.Stdin != nil, TTY: a.rec.Config.TTY})
	defer func() { ended(-1, err) }()
	if a.rec.Phase != a.phase {
		return a.wrap(fmt.Errorf("it is %s: %w", a.rec.Phase, errdefs.ErrFailedPrecondition))
	}
	settings := a.m.settings.Load()
	a.request = &keeper.AttachRequest{
		ContainerID: a.container.ID(), AttachID: record.NewID()[:32], Stdin: a.opts.Stdin != nil && a.rec.Config.Stdin,
		Backlog: settings.AttachBacklog, TotalBacklog: settings.AttachTotal, SpillDir: a.m.dirs.Attach(),
	}
	defer a.out.Close()
	if err := a.out.Request(a.request, &a.opts, a.rec.Config.TTY); err != nil {
		return a.wrap(err)
	}
	a.killed = a.m.cfg.Keeper.Killed()
	err = ask()
	a.out.CloseTheirs()
	if err != nil {
		return err
	}
	defer func() {
		detachErr := a.detach(ctx)
		switch {
		case detachErr == nil:
		case err == nil && (errdefs.IsResourceExhausted(detachErr) || errdefs.IsUnavailable(detachErr)):
			err = a.wrap(detachErr)
		default:
			a.m.log.Debug("detach", "container_id", a.container.ID(), "error", detachErr)
		}
	}()
	if err := a.openInput(); err != nil {
		return a.wrap(err)
	}
	if a.input != nil {
		defer a.input.File.Close()
	}
	a.done = make(chan struct{})
	defer close(a.done)
	a.copy(ctx)
	return a.wait(ctx)
}

// openInput opens the container's input, which is also its terminal, where the client has input or the container a
// terminal.
func (a *attachment) openInput() (err error) {
	if !a.rec.Config.TTY && (a.opts.Stdin == nil || !a.rec.Config.Stdin) {
		return nil
	}
	a.input, err = a.m.cfg.Keeper.Input(a.container.ID())
	switch {
	case a.phase == record.ContainerCreated && errdefs.IsNotFound(err): // it has ended by now: its output is there
		return nil
	case a.rec.Config.StdinOnce && errdefs.IsFailedPrecondition(err) && a.out.Any():
		return nil // its first client has gone, and the input with it: a later one has the output, as with containerd
	}
	return err
}

// copy begins to copy the client's streams.
func (a *attachment) copy(ctx context.Context) {
	a.out.Start()
	if a.input != nil && a.input.Terminal {
		go stdio.Resize(a.input.File, a.opts.Resize, a.done)
	}
	a.inputDone = make(chan struct{})
	switch {
	case a.opts.Stdin == nil:
		return
	case a.input == nil: // what the client sends must not hold up its connection
		go func() { _, _ = io.Copy(io.Discard, a.opts.Stdin) }()
		return
	}
	go func() {
		defer close(a.inputDone)
		_, _ = io.Copy(a.input.File, a.opts.Stdin)
		if !a.input.Terminal {
			a.input.File.Close() // the container sees the end of its input once nobody can write to it
		}
		select {
		case <-a.done:
		default:
			a.closeStdinOnce(ctx)
		}
	}()
}

// wait waits until the client goes. One that takes output is attached until the last of it; one that only sends input,
// until that ends.
func (a *attachment) wait(ctx context.Context) error {
	var stdinEnded, outputEnded <-chan struct{}
	if a.out.Any() {
		outputEnded = a.out.Ended()
	} else {
		stdinEnded = a.inputDone
	}
	err := awaitAttached(ctx, a.container, outputEnded, stdinEnded, a.killed)
	if err == nil {
		return nil
	}
	if a.rec.Config.StdinOnce && a.opts.Stdin != nil {
		a.closeStdinOnce(context.WithoutCancel(ctx))
	}
	return a.wrap(err)
}

// awaitAttached waits until the client's output or input has ended (one of the two channels is nil), or until the
// container has ended and the rest of its output was sent, or until the keeper was killed. It returns an error if ctx
// ends before.
func awaitAttached(ctx context.Context, c *index.Container, outputEnded, stdinEnded, killed <-chan struct{}) error {
	select {
	case <-outputEnded:
	case <-stdinEnded:
	case <-killed:
	case <-c.Exited():
		if outputEnded == nil {
			return nil
		}
		select {
		case <-outputEnded:
		case <-killed:
		case <-ctx.Done():
			return ctx.Err() // a client that still reads has to learn that the rest is missing
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// detach ends an attachment. The error is errdefs.ErrResourceExhausted where the client was cut off, and
// errdefs.ErrUnavailable where it had output and the keeper that copied that has ended; others are of no concern to a
// client.
func (a *attachment) detach(ctx context.Context) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	err := a.m.cfg.Keeper.Detach(ctx, a.container.ID(), a.request.AttachID)
	if !errdefs.IsNotFound(err) && !errdefs.IsUnavailable(err) {
		return err
	}
	if a.request.Stdin {
		a.closeStdinOnce(ctx) // only the keeper that has ended knew whose input it was
	}
	if !a.out.Any() {
		return fmt.Errorf("the keeper has ended: %v", err)
	}
	// The output ended with that keeper, and not with the container.
	return fmt.Errorf("the keeper that copied the output has ended; the container's log has all of it: %w",
		errdefs.ErrUnavailable)
}

// closeStdinOnce ends the input of a container that wanted it from its first client alone.
func (a *attachment) closeStdinOnce(ctx context.Context) {
	if !a.rec.Config.StdinOnce || a.rec.Config.TTY {
		return
	}
	id := a.container.ID()
	if err := a.m.cfg.Keeper.CloseStdin(ctx, id); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		a.m.log.Debug("close the input of a container", "container_id", id, "error", err)
	}
}
