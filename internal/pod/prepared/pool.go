// Package prepared keeps the namespaces and the network of a few pods that nobody has asked for yet, so that a pod that
// is asked for does not wait for them.
//
// What is made ahead has the ID that its pod will have, and lies where that pod's own would. So it is taken without
// being moved or renamed, and what a killed berthd has left of it is to the next one what is left of any pod without a
// record.
package prepared

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// quietTime is how long no call may have started anything before another set is made. A pod is made by several calls,
	// and those that come between would wait for the processor.
	quietTime = 250 * time.Millisecond
	// completeTime is quietTime after a call that has probably made the last part of a pod.
	completeTime = 5 * time.Millisecond
	// maxBusy is how long a call keeps sets from being made. One that takes longer waits for something, such as a file
	// system or a plugin, and leaves the processor to others.
	maxBusy = time.Second
	// linger is how long sets stay after the last pod has gone.
	linger = time.Second
	// maxAge is how old a set may get. A network namespace begins with some of the node's sysctls as they are then.
	maxAge = 10 * time.Minute
	// makeTimeout bounds the making of one set, and its removal.
	makeTimeout = 30 * time.Second
)

// Maker makes the namespaces and the network of a pod of which nothing but the ID is known, all or nothing, and removes
// them.
type Maker interface {
	Prepare(ctx context.Context, id string) error
	DropPrepared(ctx context.Context, id string) error
}

// Config is the configuration of a Pool.
type Config struct {
	Size  int // at most so many sets; 0: none
	Maker Maker
	NewID func() string
	// InUse tells whether the node has pods. Without one nothing is made, and what there is goes.
	InUse func() bool
	Log   *slog.Logger
}

// Pool has sets of namespaces that are ready. The zero Config makes a Pool without any.
type Pool struct {
	cfg Config

	mu    sync.Mutex
	ready []set // the oldest first
	calls map[*call]struct{}
	asked bool   // somebody has taken a set, or would have
	why   string // the last error of Prepare: it is logged once

	due bool // a set was to be made while a call ran

	// complete: the last call that has made a part of a pod has made the last one, as far as is known.
	complete bool

	changed chan struct{} // a call has ended, or a pod has gone
}

type set struct {
	id   string
	made time.Time
}

// call is one that has not ended.
type call struct{ begun time.Time }

// New returns an empty Pool. Run fills it.
func New(cfg Config) *Pool {
	return &Pool{cfg: cfg, calls: map[*call]struct{}{}, changed: make(chan struct{}, 1)}
}

// Take returns the ID of a set, which is the caller's from then on. ok is false where there is none.
func (p *Pool) Take() (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	if len(p.ready) == 0 {
		return "", false
	}
	id = p.ready[0].id
	p.ready = p.ready[1:]
	return id, true
}

// Drop removes a set that was taken, and of which nothing was used.
func (p *Pool) Drop(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTimeout)
	defer cancel()
	if err := p.cfg.Maker.DropPrepared(ctx, id); err != nil {
		p.cfg.Log.Error("remove namespaces that were made ahead of their pod; the next start of berthd tries again",
			"pod_id", id, "error", err)
	}
}

// Work is what a call does.
type Work int

const (
	Exec        Work = iota // starts an exec
	PodStep                 // makes a part of a pod that others follow
	LastPodStep             // makes the last part of a pod, as far as is known: most pods have only one container
)

// Busy keeps the Pool from making sets until the function that it returns is called, for maxBusy at most.
func (p *Pool) Busy(work Work) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &call{time.Now()}
	p.calls[c] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, c)
		if work != Exec {
			p.complete = work == LastPodStep
		} else if !p.due {
			return // the probes of a node's containers never cease: they must not put off a set again and again
		}
		p.due = false
		wake(p.changed)
	}
}

// Gone says that a pod has gone.
func (p *Pool) Gone() { wake(p.changed) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run makes sets when there is time for it, until ctx ends. Then it removes those that are left.
func (p *Pool) Run(ctx context.Context) {
	if p.cfg.Size == 0 {
		return
	}
	defer p.drop(ctx, func(set) bool { return true })
	wait := time.NewTimer(time.Hour)
	wait.Stop()
	defer wait.Stop()
	aged := time.NewTicker(maxAge / 4)
	defer aged.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed: // each change begins the wait again
			wait.Reset(p.pause())
			continue
		case <-wait.C:
		case <-aged.C:
			p.drop(ctx, func(s set) bool { return time.Since(s.made) > maxAge })
		}
		if p.cfg.InUse() {
			if again := p.fill(ctx); again > 0 {
				wait.Reset(again)
			}
		} else {
			p.drop(ctx, func(set) bool { return true })
		}
	}
}

// pause is how long nothing may change before something is done.
func (p *Pool) pause() time.Duration {
	if !p.cfg.InUse() {
		return linger
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.complete {
		return completeTime
	}
	return quietTime
}

// fill makes sets until there are enough, or a call that works leaves no time for it. again is after which time that
// call does not count any more, if it has not ended by then; 0: there is none.
func (p *Pool) fill(ctx context.Context) (again time.Duration) {
	for ctx.Err() == nil {
		wants, again := p.wants()
		if !wants {
			return again
		}
		if err := p.Add(ctx); err != nil {
			p.failed(ctx, err)
			return 0
		}
	}
	return 0
}

// Add makes one set.
func (p *Pool) Add(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	made := set{id: p.cfg.NewID(), made: time.Now()}
	if err := p.cfg.Maker.Prepare(ctx, made.id); err != nil {
		return err
	}
	p.mu.Lock()
	p.ready, p.why = append(p.ready, made), ""
	p.mu.Unlock()
	return nil
}

// wants tells whether a set is to be made now. If there are too few, but calls that work, again is when to ask next.
func (p *Pool) wants() (now bool, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked || len(p.ready) >= p.cfg.Size {
		p.due = false
		return false, 0
	}
	for c := range p.calls {
		again = max(again, maxBusy-time.Since(c.begun))
	}
	p.due = again > 0
	return !p.due, again
}

// failed logs why no set can be made. Pods are made without one, and fail for the same reason where it is one that
// concerns them too.
func (p *Pool) failed(ctx context.Context, err error) {
	p.mu.Lock()
	known := p.why == err.Error()
	p.why = err.Error()
	p.mu.Unlock()
	if !known && ctx.Err() == nil {
		p.cfg.Log.Warn("namespaces and network of a pod could not be made ahead of it", "error", err)
	}
}

// drop removes the sets that gone is true of.
func (p *Pool) drop(ctx context.Context, gone func(set) bool) {
	p.mu.Lock()
	var dropped []set
	p.ready = slices.DeleteFunc(p.ready, func(s set) bool {
		if gone(s) {
			dropped = append(dropped, s)
			return true
		}
		return false
	})
	p.mu.Unlock()
	// Each removal waits for a grace period of the kernel. Side by side, they wait for the same one.
	var all sync.WaitGroup
	for _, s := range dropped {
		all.Go(func() { p.Drop(ctx, s.id) })
	}
	all.Wait()
}
