package logview

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"berth/internal/cli/crilog"
)

// Log is the log of a container.
type Log struct {
	Name    Name
	Path    string
	Options crilog.Options
}

// Show prints logs. Those that are followed are printed as they are written, others in the order of their lines' times.
// A log that cannot be read leaves the others alone; output that cannot be written ends all of them.
func (p *Printer) Show(ctx context.Context, logs []Log) error {
	if len(logs) == 1 || slices.ContainsFunc(logs, func(l Log) bool { return l.Options.Follow }) {
		reading, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		var all errgroup.Group
		for _, log := range logs {
			all.Go(func() error {
				return crilog.Read(reading, log.Path, log.Options, func(line *crilog.Line) error {
					err := p.Print(log.Name, line)
					if err != nil {
						fail(err)
					}
					return err
				})
			})
		}
		err := all.Wait()
		if unwritten := context.Cause(reading); unwritten != nil && ctx.Err() == nil {
			return unwritten
		}
		return err
	}
	return p.merge(ctx, logs)
}

// merge reads logs side by side: no more than a line of each is in memory.
func (p *Printer) merge(ctx context.Context, logs []Log) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heads := make([]*head, len(logs))
	for i, log := range logs {
		heads[i] = &head{log: log, lines: make(chan *crilog.Line), taken: make(chan struct{})}
		go heads[i].read(ctx)
	}
	var errs []error
	for _, h := range heads {
		errs = append(errs, h.next(ctx, false))
	}
	for {
		var first *head
		for _, h := range heads {
			if h.line != nil && (first == nil || earlier(h.line, first.line)) {
				first = h
			}
		}
		if first == nil {
			return errors.Join(errs...)
		}
		if err := p.Print(first.log.Name, first.line); err != nil {
			return err
		}
		errs = append(errs, first.next(ctx, true))
	}
}

// earlier compares the times of lines. The pieces of a long line follow their first.
func earlier(a, b *crilog.Line) bool { return a.Time < b.Time }

// head is the next line of a log.
type head struct {
	log   Log
	line  *crilog.Line // nil: there are no more
	lines chan *crilog.Line
	taken chan struct{} // the line may be overwritten
	err   error         // why lines ended; read after they have
}

func (h *head) read(ctx context.Context) {
	defer close(h.lines)
	h.err = crilog.Read(ctx, h.log.Path, h.log.Options, func(line *crilog.Line) error {
		select {
		case h.lines <- line:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-h.taken:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// next takes the next line. printed says that the one before has been printed.
func (h *head) next(ctx context.Context, printed bool) error {
	if printed {
		select {
		case h.taken <- struct{}{}:
		case <-ctx.Done(): // the reader may have gone
		}
	}
	line, more := <-h.lines
	h.line = line
	if more {
		return nil
	}
	if h.err != nil {
		return fmt.Errorf("log of %s: %w", h.log.Name.text, h.err)
	}
	return nil
}
