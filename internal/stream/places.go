package stream

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

const (
	// maxStreams bounds the clients that are served at a time. Each takes some hundred KiB of memory and a few descriptors
	// of berthd, and of the keeper, and who may exec can have any number of tokens.
	maxStreams = 2048
	// maxStreamsOfOne bounds those of one container, or to ports of one pod, so that its users leave places for others.
	maxStreamsOfOne = 512
)

// places counts the clients that are served.
type places struct {
	mu sync.Mutex // guards the fields below
	n  int
	of map[string]int // by what they are clients of
}

// check tells whether there is a place for one more client. The error wraps errdefs.ErrResourceExhausted.
func (p *places) check(of string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room(of)
}

// take takes a place for a client, until leave is called. The error wraps errdefs.ErrResourceExhausted.
func (p *places) take(of string) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.room(of); err != nil {
		return nil, err
	}
	p.n++
	p.of[of]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.n--
		if p.of[of]--; p.of[of] == 0 {
			delete(p.of, of)
		}
	}, nil
}

// room is the error of a client more. The caller holds the lock.
func (p *places) room(of string) error {
	if p.of[of] >= maxStreamsOfOne {
		return fmt.Errorf("%s has %d clients of exec, attach or port-forward, which is the limit: %w", of, p.of[of],
			errdefs.ErrResourceExhausted)
	}
	if p.n >= maxStreams {
		return fmt.Errorf("this node has %d clients of exec, attach and port-forward, which is the limit: %w", p.n,
			errdefs.ErrResourceExhausted)
	}
	return nil
}
