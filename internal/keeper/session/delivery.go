package session

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/gate"
	"berth/internal/keeper/protocol"
)

// Deliveries are the files that clients send for a call, by the token that the call names. The files may come before
// the call or after it.
type Deliveries struct {
	gate    *gate.Gate
	mu      sync.Mutex
	byToken map[string]*delivery
}

// NewDeliveries is for calls that the gate lets in.
func NewDeliveries(g *gate.Gate) *Deliveries {
	return &Deliveries{gate: g, byToken: map[string]*delivery{}}
}

// deliveryWait is how long a call waits for the files that it names, and files for their call.
const deliveryWait = 10 * time.Second

// delivery is a set of files that a call is to fetch. It is guarded by Deliveries.mu.
type delivery struct {
	ready  chan struct{}
	packet *protocol.Packet
	over   bool // the call has gone; what still comes is closed
}

// expect finds or makes the place where the files of a token arrive.
func (d *Deliveries) expect(token string) *delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.byToken[token]
	if one == nil {
		one = &delivery{ready: make(chan struct{})}
		d.byToken[token] = one
		time.AfterFunc(2*deliveryWait, func() {
			d.Discard(token)
			d.mu.Lock()
			delete(d.byToken, token)
			d.mu.Unlock()
		})
	}
	return one
}

// Deliver takes files that a client has sent.
func (d *Deliveries) Deliver(p *protocol.Packet) {
	one := d.expect(p.Token)
	d.mu.Lock()
	defer d.mu.Unlock()
	if one.packet != nil || one.over {
		p.CloseFiles()
		return
	}
	one.packet = p
	close(one.ready)
}

// Discard closes the files of a token that nobody has taken or will take: somebody may wait for the end of a pipe that
// they hold open. A call discards its token when it returns.
func (d *Deliveries) Discard(token string) {
	if token == "" {
		return
	}
	one := d.expect(token)
	d.mu.Lock()
	p := one.packet
	one.packet, one.over = nil, true
	d.mu.Unlock()
	if p != nil {
		p.CloseFiles()
	}
}

// Take fetches the files of a token, by role. The caller owns the descriptors.
func (d *Deliveries) Take(token string) (map[protocol.Role]int, error) {
	if token == "" {
		return nil, nil
	}
	one := d.expect(token)
	timeout := time.NewTimer(deliveryWait)
	defer timeout.Stop()
	select {
	case <-one.ready:
	case <-timeout.C:
		return nil, fmt.Errorf("files of the call did not arrive: %w", errdefs.ErrUnavailable)
	case <-d.gate.Stopped():
		return nil, gate.ErrUpgrading
	}
	d.mu.Lock()
	p := one.packet
	one.packet, one.over = nil, true
	d.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("files of the call were taken before: %w", errdefs.ErrInvalidArgument)
	}
	if p.Cut {
		return nil, fmt.Errorf("the keeper has no room for the files of the call (RLIMIT_NOFILE): %w",
			errdefs.ErrResourceExhausted)
	}
	if len(p.FDs) != len(p.Roles) {
		p.CloseFiles()
		return nil, fmt.Errorf("%d files with %d roles: %w", len(p.FDs), len(p.Roles), errdefs.ErrInvalidArgument)
	}
	m := map[protocol.Role]int{}
	for i, r := range p.Roles {
		if _, ok := m[r]; ok {
			unix.Close(p.FDs[i])
			continue
		}
		m[r] = p.FDs[i]
	}
	return m, nil
}
