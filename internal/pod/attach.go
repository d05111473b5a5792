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
	return m.attach(ctx, id, opts, record.ContainerRunning, func(c *index.Container, req *keeper.AttachRequest) error {
		if err := m.cfg.Keeper.Attach(ctx, req); err != nil {
			return fmt.Errorf("attach to container %s: %w", record.ShortID(c.ID()), err)
		}
		return nil
	})
}

// StartAttached starts a created container and joins the caller's streams to its own, as Attach does. The caller is
// attached before the program begins, and gets all that it writes. size is that of its terminal, zero if it is not
// known.
func (m *Manager) StartAttached(ctx context.Context, id string, size TermSize, opts AttachOptions) error {
	return m.attach(ctx, id, opts, record.ContainerCreated, func(c *index.Container, req *keeper.AttachRequest) error {
		return m.startContainer(ctx, c, &firstClient{req, size})
	})
}

// attach joins the caller's streams to those of a container, which has to be in a phase, with a function that asks the
// keeper for it.
func (m *Manager) attach(ctx context.Context, id string, opts AttachOptions, phase record.ContainerPhase,
	ask func(*index.Container, *keeper.AttachRequest) error) (err error) {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	r := c.Record()
	ended := m.auditContainer(ctx, c.ID(),
		audit.Operation{Kind: audit.Attach, Stdin: opts.Stdin != nil, TTY: r.Config.TTY})
	defer func() { ended(-1, err) }()
	if r.Phase != phase {
		return fmt.Errorf("attach to container %s: it is %s: %w", record.ShortID(c.ID()), r.Phase,
			errdefs.ErrFailedPrecondition)
	}
	attachErr := func(err error) error { return fmt.Errorf("attach to container %s: %w", record.ShortID(c.ID()), err) }
	settings := m.settings.Load()
	req := &keeper.AttachRequest{
		ContainerID: c.ID(), AttachID: record.NewID()[:32], Stdin: opts.Stdin != nil && r.Config.Stdin,
		Backlog: settings.AttachBacklog, TotalBacklog: settings.AttachTotal, SpillDir: m.dirs.Attach(),
	}
	var out stdio.Outputs
	defer out.Close()
	if err := out.Request(req, &opts, r.Config.TTY); err != nil {
		return attachErr(err)
	}
	err = ask(c, req)
	out.CloseTheirs()
	if err != nil {
		return err
	}
	defer func() {
		detachErr := m.detach(ctx, c, req.AttachID, out.Any())
		switch {
		case detachErr == nil:
		case err == nil && (errdefs.IsResourceExhausted(detachErr) || errdefs.IsUnavailable(detachErr)):
			err = attachErr(detachErr)
		default:
			m.log.Debug("detach", "container_id", c.ID(), "error", detachErr)
		}
	}()
	var input *keeper.Input
	if r.Config.TTY || (opts.Stdin != nil && r.Config.Stdin) {
		switch input, err = m.cfg.Keeper.Input(c.ID()); {
		case err == nil:
			defer input.File.Close()
		case phase == record.ContainerCreated && errdefs.IsNotFound(err): // it has ended by now: its output is there
		default:
			return attachErr(err)
		}
	}
	out.Start()
	done := make(chan struct{})
	defer close(done)
	if input != nil && input.Terminal {
		go stdio.Resize(input.File, opts.Resize, done)
	}
	inputDone := make(chan struct{})
	if opts.Stdin != nil && input != nil {
		go func() {
			defer close(inputDone)
			_, _ = io.Copy(input.File, opts.Stdin)
			if !input.Terminal {
				input.File.Close() // the container sees the end of its input once nobody can write to it
			}
			select {
			case <-done:
			default:
				m.closeStdinOnce(ctx, c, &r)
			}
		}()
	}
	// A client that takes output is attached until the last of it; one that only sends input, until that ends.
	var stdinEnded, outputEnded <-chan struct{}
	if out.Any() {
		outputEnded = out.Ended()
	} else {
		stdinEnded = inputDone
	}
	if err := awaitAttached(ctx, c, outputEnded, stdinEnded); err != nil {
		if r.Config.StdinOnce && opts.Stdin != nil {
			m.closeStdinOnce(context.WithoutCancel(ctx), c, &r)
		}
		return attachErr(err)
	}
	return nil
}

// awaitAttached waits until the client's output or input has ended (one of the two channels is nil), or until the
// container has ended and the rest of its output was sent. It returns an error if ctx ends first.
func awaitAttached(ctx context.Context, c *index.Container, outputEnded, stdinEnded <-chan struct{}) error {
	select {
	case <-outputEnded:
	case <-stdinEnded:
	case <-c.Exited():
		if outputEnded == nil {
			return nil
		}
		select {
		case <-outputEnded:
		case <-ctx.Done():
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// detach ends an attachment. The error is errdefs.ErrResourceExhausted where the client was cut off, and
// errdefs.ErrUnavailable where it had output and the keeper that copied that has ended; others are of no concern to a
// client.
func (m *Manager) detach(ctx context.Context, c *index.Container, attachID string, output bool) error {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	err := m.cfg.Keeper.Detach(ctx, c.ID(), attachID)
	switch replaced := errdefs.IsNotFound(err) || errdefs.IsUnavailable(err); {
	case !replaced:
		return err
	case !output:
		return fmt.Errorf("the keeper has ended: %v", err)
	}
	// The output ended with that keeper, and not with the container.
	return fmt.Errorf("the keeper that copied the output has ended; the container's log has all of it: %w",
		errdefs.ErrUnavailable)
}

// closeStdinOnce ends the input of a container that wanted it from its first client alone.
func (m *Manager) closeStdinOnce(ctx context.Context, c *index.Container, r *record.Container) {
	if !r.Config.StdinOnce || r.Config.TTY {
		return
	}
	if err := m.cfg.Keeper.CloseStdin(ctx, c.ID()); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		m.log.Debug("close the input of a container", "container_id", c.ID(), "error", err)
	}
}
