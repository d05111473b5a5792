package audit

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// What is kept for a subscriber that has not taken it. Lines alone would be no bound of memory: one with a long command
// has up to 200 KiB.
const (
	backlog      = 1024    // lines
	backlogBytes = 4 << 20 // of all these lines
)

// subscriber is somebody who gets lines as they are written.
type subscriber struct {
	lines   chan []byte  // closed when the subscriber is cut off, or the log has ended
	waiting atomic.Int64 // bytes in lines
	end     error        // why it was cut off; guarded by Log.mu
}

// Subscribe passes each line that is written from now on, without its end, to a function, until that or ctx ends. No
// operation waits for a subscriber: one that takes its lines too slowly is cut off with ErrResourceExhausted. The error
// is ErrFailedPrecondition where nothing is written down, and nil once the log has ended.
func (l *Log) Subscribe(ctx context.Context, take func(line []byte) error) error {
	s := &subscriber{lines: make(chan []byte, backlog)}
	if err := l.add(s); err != nil {
		return err
	}
	defer l.drop(s)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return l.ending(s)
			}
			s.waiting.Add(-int64(len(line)))
			if err := take(line); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *Log) add(s *subscriber) error {
	if l == nil {
		return errOff
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return errOff
	}
	if l.ended {
		close(s.lines)
		return nil
	}
	if l.subscribers == nil {
		l.subscribers = map[*subscriber]bool{}
	}
	l.subscribers[s] = true
	return nil
}

func (l *Log) drop(s *subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subscribers, s)
}

func (l *Log) ending(s *subscriber) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.end
}

var (
	errOff = fmt.Errorf("audit.file is empty: nothing is written down of who runs what: %w",
		errdefs.ErrFailedPrecondition)
	errSlow = fmt.Errorf("%d lines or %d MiB of the audit wait for this client, which takes them too slowly: %w", backlog,
		backlogBytes>>20, errdefs.ErrResourceExhausted)
)

// tell passes a line to the subscribers, which only read it. The caller holds l.mu.
func (l *Log) tell(line []byte) {
	for s := range l.subscribers {
		if s.waiting.Add(int64(len(line))) > backlogBytes {
			l.cutOff(s, errSlow)
			continue
		}
		select {
		case s.lines <- line:
		default:
			l.cutOff(s, errSlow)
		}
	}
}

// EndSubscriptions ends all calls of Subscribe, and those to come: berthd ends, and waits for the calls that it serves.
func (l *Log) EndSubscriptions() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for s := range l.subscribers {
		l.cutOff(s, nil)
	}
}

// cutOff ends a subscription. The caller holds l.mu.
func (l *Log) cutOff(s *subscriber, why error) {
	s.end = why
	close(s.lines)
	delete(l.subscribers, s)
}
