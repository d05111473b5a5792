package image

import (
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// What is told of a pull is of the model, since APIs tell it on.
type (
	Phase    = model.PullPhase
	Progress = model.PullProgress
)

const (
	PhaseWaiting = model.PullWaiting
	PhaseLoading = model.PullLoading
	PhasePresent = model.PullPresent
	PhaseDone    = model.PullDone
)

// bar is the progress of one layer. Several pulls may look at one job.
type bar struct {
	phase atomic.Pointer[Phase]
	done  atomic.Pointer[atomic.Int64] // of the job that loads it
}

func (b *bar) set(p Phase) { b.phase.Store(&p) }

type bars struct {
	descs  []ocispec.Descriptor
	layers []*bar
	report func(Progress)
	last   []Progress
	end    chan struct{}
	ended  sync.WaitGroup
}

func newProgress(descs []ocispec.Descriptor, report func(Progress)) *bars {
	b := &bars{descs: descs, report: report, last: make([]Progress, len(descs)), end: make(chan struct{})}
	for range descs {
		l := &bar{}
		l.set(PhaseWaiting)
		b.layers = append(b.layers, l)
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
func (b *bars) tell() {
	for i, l := range b.layers {
		p := Progress{Layer: b.descs[i].Digest.String(), Phase: *l.phase.Load(), Total: b.descs[i].Size}
		if n := l.done.Load(); n != nil {
			p.Done = n.Load()
		}
		if p.Phase == PhaseDone || p.Phase == PhasePresent {
			p.Done = p.Total
		}
		if p != b.last[i] {
			b.last[i] = p
			b.report(p)
		}
	}
}

func (b *bars) close() {
	close(b.end)
	b.ended.Wait()
}
