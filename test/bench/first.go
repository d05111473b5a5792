package main

import (
	"context"
	"errors"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// first measures the first pod of a runtime that has just been started and has no state but the image.
func (p *peer) first(ctx context.Context, r *result) error {
	fresh, err := p.fresh(ctx)
	if err != nil {
		return err
	}
	made, t, err := fresh.firstPod(ctx)
	if err == nil {
		r.add(rowFirst, t.run+t.create+t.start)
	}
	return errors.Join(err, fresh.remove(ctx, made), fresh.close())
}

func (p *peer) firstPod(ctx context.Context) (*pod, times, error) {
	if _, err := p.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: p.image}}); err != nil {
		return nil, times{}, err
	}
	return p.start(ctx, nil)
}
