package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crowd measures what many pods change: how long one more takes, what lists take, and how long a daemon that was killed
// takes to be ready again.
func (p *peer) crowd(ctx context.Context, o *options, r *result) error {
	all, _, err := p.many(ctx, 4, o.crowd)
	if err == nil {
		err = p.amongMany(ctx, o, r)
	}
	return errors.Join(err, p.removeMany(ctx, all))
}

func (p *peer) amongMany(ctx context.Context, o *options, r *result) error {
	for range 2 * o.lives {
		made, t, err := p.start(ctx, nil)
		if err == nil {
			r.add(rowCrowd, t.run+t.create+t.start)
		}
		if err := errors.Join(err, p.remove(ctx, made)); err != nil {
			return err
		}
	}
	if err := p.lists(ctx, o.crowd, rowListMany, rowStatsMany, r); err != nil {
		return err
	}
	if p.kill == nil {
		return nil // it is not ours to kill
	}
	for range 3 {
		if err := p.kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := p.restart(ctx); err != nil {
			return err
		}
		r.add(rowReady, time.Since(began))
		list, err := p.runtime.ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
		})
		if err != nil {
			return err
		}
		if len(list.Containers) < o.crowd {
			return fmt.Errorf("%d of %d containers run after the daemon was killed", len(list.Containers), o.crowd)
		}
	}
	return nil
}

// lists times both lists of containers.
func (p *peer) lists(ctx context.Context, atLeast int, containers, stats row, r *result) error {
	for range 20 {
		began := time.Now()
		list, err := p.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
		if err != nil {
			return err
		}
		if len(list.Containers) < atLeast {
			return fmt.Errorf("%d of %d containers are listed", len(list.Containers), atLeast)
		}
		r.add(containers, time.Since(began))
		began = time.Now()
		if _, err := p.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{}); err != nil {
			return err
		}
		r.add(stats, time.Since(began))
	}
	return nil
}
