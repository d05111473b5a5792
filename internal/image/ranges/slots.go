package ranges

import (
	"context"
	"slices"
	"time"
)

const (
	// recovery is how many ranges have to come without a complaint until a host that complained is asked for one more at
	// a time.
	recovery = 8
	// forgetting is after how long a complaint of a host counts no more.
	forgetting = 10 * time.Minute
	// minCalm is how long no further connection is made after a complaint that does not say how long.
	minCalm = time.Second
)

// slots are the connections to one host. The lock of the pool guards them.
type slots struct {
	limit, used int
	waiting     []chan struct{} // first come, first served; closed when the slot is theirs
	complained  time.Time       // when the host last said that it is asked too often
	calm        time.Time       // until then nothing is loaded ahead
	sound       int             // ranges since the limit was last changed
}

// host is the entry of a name. The lock is held.
func (p *Pool) host(name string) *slots {
	h := p.hosts[name]
	if h == nil {
		now := time.Now()
		for other, o := range p.hosts {
			if o.idle() && now.Sub(o.complained) > forgetting {
				delete(p.hosts, other)
			}
		}
		h = &slots{limit: p.settings.PerHost}
		p.hosts[name] = h
	}
	if h.limit < p.settings.PerHost && time.Since(h.complained) > forgetting {
		h.allow(p.settings.PerHost)
	}
	return h
}

// allow changes the limit, and gives connections to those who wait.
func (h *slots) allow(limit int) {
	h.limit = limit
	for h.used < h.limit && len(h.waiting) > 0 {
		close(h.waiting[0])
		h.waiting = h.waiting[1:]
		h.used++
	}
}

func (h *slots) idle() bool { return h.used == 0 && len(h.waiting) == 0 }

// Acquire waits for a connection to a host. Release gives it back.
func (p *Pool) Acquire(ctx context.Context, name string) error {
	p.mu.Lock()
	h := p.host(name)
	if h.used < h.limit {
		h.used++
		p.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	h.waiting = append(h.waiting, mine)
	p.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-mine: // both at once
		p.release(name, h)
	default:
		h.waiting = slices.DeleteFunc(h.waiting, func(c chan struct{}) bool { return c == mine })
	}
	return context.Cause(ctx)
}

// tryAcquire takes a connection to load ahead, where one is free and the host has not complained just now. While
// somebody waits for one to read on, none is free.
func (p *Pool) tryAcquire(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.host(name)
	if h.used >= h.limit || time.Now().Before(h.calm) {
		return false
	}
	h.used++
	return true
}

// Release gives a connection back.
func (p *Pool) Release(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(name, p.hosts[name])
}

func (p *Pool) release(name string, h *slots) {
	h.used--
	h.allow(h.limit)
	if h.idle() && h.limit == p.settings.PerHost {
		delete(p.hosts, name)
	}
}

// Complained is told when a host says that it is asked too often. It gets half of the connections from then on, and
// nothing is loaded ahead from it until some time has passed.
func (p *Pool) Complained(name string, calm time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.host(name)
	now := time.Now()
	if until := now.Add(max(calm, minCalm)); until.After(h.calm) {
		h.calm = until
	}
	// Requests that were on their way at the first complaint may have the same answer: they are one complaint.
	if now.Sub(h.complained) < minCalm/2 {
		return
	}
	h.complained, h.sound = now, 0
	h.limit = max(1, min(h.limit, h.used)/2)
}

// worked is told when a range has come whole.
func (p *Pool) worked(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[name]
	if h == nil || h.limit >= p.settings.PerHost {
		return
	}
	if h.sound++; h.sound >= recovery {
		h.sound = 0
		h.allow(h.limit + 1)
	}
}
