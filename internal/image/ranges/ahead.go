package ranges

import (
	"context"
	"io"
	"sync"
	"time"
)

// Source opens ranges of one blob at one host. Its methods are called from several goroutines.
type Source interface {
	// Host is what connections are counted by.
	Host() string
	// Open asks for the bytes from..to, to excluded. The answer may have fewer.
	Open(ctx context.Context, from, to int64) (io.ReadCloser, error)
	// Again says how long to wait before a range is asked for again that has failed so many times in a row without
	// bringing anything. False: the range is left to the reader.
	Again(err error, failed int) (time.Duration, bool)
}

// Ahead is what of a blob is loaded ahead of its reader. Its methods belong to the reader's goroutine.
type Ahead struct {
	pool        *Pool
	connections int
	step        int64 // bytes of a range
	size        int64 // of the blob
	ctx         context.Context
	cancel      context.CancelFunc
	work        sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	source  Source   // nil: no host has answered a request for a range yet
	queue   []*chunk // in the order of the blob
	next    int64    // the first byte that nobody has asked for
	held    int64    // bytes of memory
	loading int      // ranges in the queue that are being loaded
	direct  bool     // the reader has a connection too
	stopped bool
	pace    pace
}

// chunk is a range. Its memory belongs to the goroutine that loads it as far as it is not filled, and to the reader
// from the start to there. The reader gives the memory back when it has read all, or when the range is done.
type chunk struct {
	from         int64
	size         int
	memory       []byte // of the pool; it may be longer than the range
	filled, read int
	done         bool // no further byte comes
}

// NewAhead is for a blob of size bytes. It is nil where the blob is to be read over one connection. Close it when done.
func (p *Pool) NewAhead(ctx context.Context, size int64) *Ahead {
	s := p.Settings()
	if s.Connections == 1 || s.PerHost == 1 || s.Memory < s.Size || size < 2*s.Size {
		return nil
	}
	a := &Ahead{pool: p, connections: s.Connections, step: s.Size, size: size, pace: pace{target: 1}}
	a.changed = sync.NewCond(&a.mu)
	a.ctx, a.cancel = context.WithCancel(ctx)
	p.enter()
	return a
}

// Claim says up to which byte the reader is to ask for itself, over a connection of its own, beginning at offset.
func (a *Ahead) Claim(offset int64) (end int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return a.size
	}
	a.direct = true
	if len(a.queue) > 0 {
		return a.queue[0].from
	}
	a.next = min(offset+a.step, a.size)
	return a.next
}

// Unclaim says that the reader's own connection has ended.
func (a *Ahead) Unclaim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.direct = false
	a.load()
}

// Follow begins to load ahead from a source that has just answered the reader.
func (a *Ahead) Follow(s Source) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.source = s
	a.load()
}

// Stop ends all loading ahead for good, and drops what is there. It may be called more than once.
func (a *Ahead) Stop() {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	a.cancel()
	a.work.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.queue {
		a.drop(c)
	}
	a.queue = nil
}

// Close ends all loading and gives the memory back.
func (a *Ahead) Close() {
	a.Stop()
	a.pool.leave()
}

// Took is told how long the reader has waited for bytes of its own connection.
func (a *Ahead) Took(wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pace.note(time.Now(), wait, a.connections) {
		a.load()
	}
}

// Read reads what was loaded for the bytes at offset, and waits for what is being loaded. 0: the reader has to ask
// for them itself.
func (a *Ahead) Read(p []byte, offset int64) int {
	began := time.Now()
	c, from, to := a.wait(offset)
	if c == nil {
		return 0
	}
	waited := time.Since(began)
	n := copy(p, c.memory[from:to]) // nobody else touches this part
	a.mu.Lock()
	defer a.mu.Unlock()
	c.read += n
	if c.read == c.size {
		a.queue = a.queue[1:]
		a.drop(c)
		a.load()
	}
	if a.pace.note(time.Now(), waited, a.connections) {
		a.load()
	}
	return n
}

// wait waits for bytes at offset.
func (a *Ahead) wait(offset int64) (c *chunk, from, to int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 {
		c := a.queue[0]
		switch {
		case c.from+int64(c.read) != offset: // the reader is not there yet
			return nil, 0, 0
		case c.filled > c.read:
			return c, c.read, c.filled
		case c.done:
			a.queue = a.queue[1:]
			a.drop(c)
		default:
			a.changed.Wait()
		}
	}
	return nil, 0, 0
}

// drop gives the memory of a range back. The lock is held.
func (a *Ahead) drop(c *chunk) {
	a.held -= int64(len(c.memory))
	a.pool.give(c.memory)
	c.memory = nil
}

// load starts to load ranges, as many as the pace wants and the pool allows. The lock is held.
func (a *Ahead) load() {
	for !a.stopped && a.source != nil && a.next < a.size && a.loading+a.own() < a.pace.target {
		memory := a.pool.take(a.held, a.step)
		if memory == nil {
			return
		}
		if !a.pool.tryAcquire(a.source.Host()) {
			a.pool.give(memory)
			return
		}
		c := &chunk{from: a.next, size: int(min(a.step, a.size-a.next)), memory: memory}
		a.next += int64(c.size)
		a.held += int64(len(memory))
		a.loading++
		a.queue = append(a.queue, c)
		source := a.source
		a.work.Go(func() { a.run(c, memory[:c.size], source) })
	}
}

func (a *Ahead) own() int {
	if a.direct {
		return 1
	}
	return 0
}

// run loads a range, and goes on where a connection breaks. It begins with a connection of the host, and ends
// without.
func (a *Ahead) run(c *chunk, buf []byte, source Source) {
	filled := 0
	for failed := 0; ; {
		n, err := a.fill(c, buf[filled:], source)
		a.pool.Release(source.Host())
		filled += n
		if filled == len(buf) {
			a.pool.worked(source.Host())
			break
		}
		if failed++; n >= progress {
			failed = 0
		}
		pause, again := source.Again(err, failed)
		if !again || !sleep(a.ctx, pause) || a.pool.Acquire(a.ctx, source.Host()) != nil {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c.done = true
	a.loading--
	a.changed.Broadcast()
	a.load()
}

// progress is how many bytes make an attempt count as useful.
const progress = 64 << 10

// fill asks for what is missing of a range once.
func (a *Ahead) fill(c *chunk, missing []byte, source Source) (n int, err error) {
	to := c.from + int64(c.size)
	body, err := source.Open(a.ctx, to-int64(len(missing)), to)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	for n < len(missing) {
		k, err := body.Read(missing[n:])
		n += k
		a.mu.Lock()
		c.filled += k
		a.changed.Broadcast()
		a.mu.Unlock()
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
