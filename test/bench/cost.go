package main

import (
	"context"
	"errors"
	"time"
)

// afterwards is how long a runtime may work on what it has answered already: the removal of a network interface and of
// directories. That is a part of what a pod costs.
const afterwards = time.Second

// cost measures the processor time of pods, from RunPodSandbox to RemovePodSandbox, and of execs. One takes less than
// the clock of some kernels tells, so it is measured of several together.
func (p *peer) cost(ctx context.Context, o *options, r *result) error {
	if p.cpu == nil || o.costs == 0 {
		return nil
	}
	spent, err := p.spent(ctx, o.costs, func() error {
		made, _, err := p.start(ctx, nil)
		return errors.Join(err, p.remove(ctx, made))
	})
	if err != nil {
		return err
	}
	r.add(rowCPULife, spent)
	made, _, err := p.start(ctx, nil)
	if err == nil {
		if spent, err = p.spent(ctx, o.costs, func() error { return p.exec(ctx, made.container) }); err == nil {
			r.add(rowCPUExec, spent)
		}
	}
	return errors.Join(err, p.remove(ctx, made))
}

// spent is the processor time that one of some calls takes, with what comes after it.
func (p *peer) spent(ctx context.Context, calls int, call func() error) (time.Duration, error) {
	if err := sleep(ctx, afterwards); err != nil { // what was before is not this one's
		return 0, err
	}
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	for range calls {
		if err := call(); err != nil {
			return 0, err
		}
	}
	if err := sleep(ctx, afterwards); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return (after - before) / time.Duration(calls), err
}
