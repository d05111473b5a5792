package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/keeper"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// Attach joins the caller's streams to a running container's own until the container ends, the output's reader goes, or ctx
// ends. Any number of callers may be attached at once. One that takes so little of the output that the keeper has cut it off
// gets ErrResourceExhausted; one whose output was copied by a keeper that was killed gets ErrUnavailable.
func (m *Manager) Attach(ctx context.Context, id string, opts AttachOptions) (err error) {
	c, err := m.index.container(id)
	if err != nil {
		return err
	}
	r := c.Record()
	if r.Phase != record.ContainerRunning {
		return fmt.Errorf("attach to container %s: it is %s: %w", record.ShortID(c.id), r.Phase, errdefs.ErrFailedPrecondition)
	}
	attachErr := func(err error) error { return fmt.Errorf("attach to container %s: %w", record.ShortID(c.id), err) }

	var input *keeper.Input
	if r.Config.TTY || (opts.Stdin != nil && r.Config.Stdin) {
		if input, err = m.cfg.Keeper.Input(c.id); err != nil {
			return attachErr(err)
		}
		defer input.File.Close()
	}
	req := &keeper.AttachRequest{
		ContainerID: c.id, AttachID: record.NewID()[:32], Stdin: opts.Stdin != nil && r.Config.Stdin,
		Backlog: m.cfg.AttachBacklog, TotalBacklog: m.cfg.AttachTotal, SpillDir: m.dirs.attachDir(),
	}
	var ours []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			f.Close()
		}
	}
	var (
		copies sync.WaitGroup
		theirs []*os.File
		starts []func()
	)
	defer func() { closeAll(ours) }()
	output := func(dst io.Writer) (*os.File, error) {
		pr, pw, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ours, theirs = append(ours, pr), append(theirs, pw)
		starts = append(starts, func() { copies.Go(func() { _, _ = io.Copy(dst, pr) }) })
		return pw, nil
	}
	if opts.Stdout != nil {
		if req.Stdout, err = output(opts.Stdout); err != nil {
			return attachErr(err)
		}
	}
	if opts.Stderr != nil && !r.Config.TTY {
		if req.Stderr, err = output(opts.Stderr); err != nil {
			closeAll(theirs)
			return attachErr(err)
		}
	}
	err = m.cfg.Keeper.Attach(ctx, req)
	closeAll(theirs)
	if err != nil {
		return attachErr(err)
	}
	defer func() {
		detach, cancel := steps.Undoing(ctx)
		defer cancel()
		detachErr := m.cfg.Keeper.Detach(detach, c.id, req.AttachID)
		replaced := errors.Is(detachErr, errdefs.ErrNotFound) || errors.Is(detachErr, errdefs.ErrUnavailable)
		switch {
		case detachErr == nil:
		case errors.Is(detachErr, errdefs.ErrResourceExhausted) && err == nil:
			err = attachErr(detachErr)
		case replaced && err == nil && len(starts) > 0: // the output ended with that keeper, and not with the container
			err = attachErr(fmt.Errorf("the keeper that copied the output has ended; the container's log has all of it: %w", errdefs.ErrUnavailable))
		default:
			m.log.Debug("detach", "container", record.ShortID(c.id), "error", detachErr)
		}
	}()
	for _, start := range starts {
		start()
	}
	done := make(chan struct{})
	defer close(done)
	if input != nil && input.Terminal {
		go resize(input.File, opts.Resize, done)
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
	outputDone := make(chan struct{})
	go func() { copies.Wait(); close(outputDone) }()
	// Whoever wants output stays for all of it; whoever brings input alone stays until that ends.
	var stdinEnded, outputEnded <-chan struct{}
	if len(starts) > 0 {
		outputEnded = outputDone
	} else {
		stdinEnded = inputDone
	}
	select {
	case <-outputEnded:
	case <-stdinEnded:
	case <-c.exited:
		if outputEnded != nil {
			select {
			case <-outputEnded: // the rest of what it wrote
			case <-ctx.Done():
			}
		}
	case <-ctx.Done():
		if r.Config.StdinOnce && opts.Stdin != nil {
			m.closeStdinOnce(context.WithoutCancel(ctx), c, &r)
		}
		return attachErr(ctx.Err())
	}
	return nil
}

// closeStdinOnce ends the input of a container that wanted it from its first client alone.
func (m *Manager) closeStdinOnce(ctx context.Context, c *container, r *record.Container) {
	if !r.Config.StdinOnce || r.Config.TTY {
		return
	}
	if err := m.cfg.Keeper.CloseStdin(ctx, c.id); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		m.log.Debug("close the input of a container", "container", record.ShortID(c.id), "error", err)
	}
}
