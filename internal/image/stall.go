package image

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/jail/ring"
)

const (
	// defaultPatience is how long a child may make no progress: many times longer than a disk usually hangs.
	defaultPatience = 5 * time.Minute
	// patiencePerMiB is the time that a child gets back for each MiB that it processes. Small files on a slow disk take
	// longest.
	patiencePerMiB = 30 * time.Second
)

// stall kills children that make no progress. A child that a hostile layer has taken over could hang on purpose, and
// would block its pull, and the pulls that wait for it, for ever. Time counts against a child only while it waits
// neither for the registry nor for another child. A child gets time back in proportion to the bytes that it processes,
// so a few bytes now and then are not enough.
type stall struct {
	patience time.Duration
	children []*stalling
	end      chan struct{}
	work     sync.WaitGroup
}

// stalling is one child that is watched.
type stalling struct {
	child interface{ Kill() }
	what  string       // its task, for errors
	owes  func() bool  // whether it is this child that the others wait for
	moved func() int64 // the bytes that it has processed
	left  time.Duration
	seen  int64
	ended atomic.Bool // stall has killed it
}

func newStall(patience time.Duration, children ...*stalling) *stall {
	s := &stall{patience: patience, children: children, end: make(chan struct{})}
	for _, c := range children {
		c.left = patience
	}
	s.work.Go(s.watch)
	return s
}

func (s *stall) watch() {
	interval := min(max(s.patience/100, time.Millisecond), time.Second)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
		}
		for _, c := range s.children {
			moved := c.moved()
			c.left = min(s.patience, c.left+time.Duration(float64(moved-c.seen)/(1<<20)*float64(patiencePerMiB)))
			c.seen = moved
			if !c.owes() {
				continue
			}
			if c.left -= interval; c.left <= 0 {
				c.ended.Store(true)
				c.child.Kill()
			}
		}
	}
}

// stop ends the watch.
func (s *stall) stop() {
	close(s.end)
	s.work.Wait()
}

// because replaces the error of a child that stall has killed by one that says so.
func (c *stalling) because(err error) error {
	if err != nil && c.ended.Load() {
		return fmt.Errorf("the child that was to %s did not get on, and was ended: %w", c.what, errdefs.ErrResourceExhausted)
	}
	return err
}

// fed is the input stream of a child. It knows whether a read from the stream is under way.
type fed struct {
	io.Reader
	reading atomic.Bool
	n       atomic.Int64
}

func (f *fed) Read(p []byte) (int, error) {
	f.reading.Store(true)
	n, err := f.Reader.Read(p)
	f.reading.Store(false)
	f.n.Add(int64(n))
	return n, err
}

// errChildLost is the error of a child that ended before it had read its whole input. The child's exit says why.
var errChildLost = errors.New("the child has gone away")

// feed sends a whole stream to a child. If the stream breaks, the child is cut off, so that it does not take the part
// for the whole.
func feed(w *ring.Writer, r *fed) error {
	var broken error
	_, err := w.ReadFrom(onError{r, &broken})
	if err == nil {
		err = w.End()
	}
	switch {
	case err == nil:
		return nil
	case broken != nil:
		err = broken
	default:
		err = errChildLost
	}
	w.HangUp()
	return err
}

// onError remembers the error of a stream.
type onError struct {
	io.Reader
	err *error
}

func (o onError) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	if err != nil && err != io.EOF {
		*o.err = err
	}
	return n, err
}
