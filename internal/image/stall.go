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
	// defaultPatience is how long a child may take for nothing: many times what a disk that hangs for a while takes.
	defaultPatience = 5 * time.Minute
	// patiencePerMiB is what a child gets back for each MiB that it works off. Small files on a slow disk take
	// the longest.
	patiencePerMiB = 30 * time.Second
)

// stall ends children that everybody waits for and that do not get on: one that its layer has taken over could hang
// on purpose, or stop itself, and would keep a pull, and those that wait for it, for ever. Time counts against a child
// only while nobody else, a registry or another child, keeps it from going on; bytes give it time back, so that crumbs
// do not.
type stall struct {
	patience time.Duration
	children []*stalling
	end      chan struct{}
	work     sync.WaitGroup
}

// stalling is one child that is watched.
type stalling struct {
	child interface{ Kill() }
	what  string      // what it is to do
	owes  func() bool // whether all wait for it
	moved func() int64
	left  time.Duration
	seen  int64
	ended atomic.Bool // by stall
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

// because makes the error of a child that was ended by the watch say so.
func (c *stalling) because(err error) error {
	if err != nil && c.ended.Load() {
		return fmt.Errorf("the child that was to %s did not get on, and was ended: %w", c.what, errdefs.ErrResourceExhausted)
	}
	return err
}

// fed is a stream that a child is fed with, and whether all wait for the stream at the moment.
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

// errChildLost is a child that went away before it had read all: how it ended says why.
var errChildLost = errors.New("the child has gone away")

// feed sends a whole stream to a child. Where the stream breaks, the child does not take the part for all.
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

// onError remembers what went wrong in a stream.
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
