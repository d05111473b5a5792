// Package progress tells how far the layers of a pull are.
package progress

import (
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// Bar is the progress of one layer. Several pulls may have a bar for one layer that is being loaded.
type Bar struct {
	phase atomic.Pointer[model.PullPhase]
	done  atomic.Pointer[atomic.Int64] // of the job that loads it
}

// Set says what becomes of the layer from now on.
func (b *Bar) Set(p model.PullPhase) { b.phase.Store(&p) }

// Follow has the bar show how many bytes of the layer are loaded, as they are counted.
func (b *Bar) Follow(loaded *atomic.Int64) { b.done.Store(loaded) }

// Bars are the progress of one pull. Close ends it.
type Bars struct {
	descs  []ocispec.Descriptor
	Layers []*Bar // in the order of the image's layers
	report func(model.PullProgress)
	last   []model.PullProgress
	end    chan struct{}
	ended  sync.WaitGroup
}

// New reports the progress of layers ten times a second where it changes; a nil report is not called.
func New(descs []ocispec.Descriptor, report func(model.PullProgress)) *Bars {
	b := &Bars{descs: descs, report: report, last: make([]model.PullProgress, len(descs)), end: make(chan struct{})}
	for range descs {
		l := &Bar{}
		l.Set(model.PullWaiting)
		b.Layers = append(b.Layers, l)
	}
	if report == nil {
		return b
	}
	b.ended.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			b.tell()
			select {
			case <-tick.C:
			case <-b.end:
				b.tell()
				return
			}
		}
	})
	return b
}

// tell reports the layers that have changed.
func (b *Bars) tell() {
	for i, l := range b.Layers {
		p := model.PullProgress{Layer: b.descs[i].Digest.String(), Phase: *l.phase.Load(), Total: b.descs[i].Size}
		if n := l.done.Load(); n != nil {
			p.Done = n.Load()
		}
		if p.Phase == model.PullDone || p.Phase == model.PullPresent {
			p.Done = p.Total
		}
		if p != b.last[i] {
			b.last[i] = p
			b.report(p)
		}
	}
}

// Close reports the last state, and returns when no report is under way any more.
func (b *Bars) Close() {
	close(b.end)
	b.ended.Wait()
}
