package ranges

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// endless is a source of zeros that sends them when it is told to.
type endless struct {
	ready  chan struct{} // closed: ranges come
	opened atomic.Int64
}

func (e *endless) Host() string { return "host" }

func (e *endless) Open(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	e.opened.Add(1)
	select {
	case <-e.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return io.NopCloser(io.LimitReader(zeros{}, to-from)), nil
}

func (e *endless) Again(error, int) (time.Duration, bool) { return 0, false }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

const kib = 1 << 10

// hungry is a blob whose reader waits all the time.
func hungry(t *testing.T, p *Pool, s Source) *Ahead {
	t.Helper()
	a := p.NewAhead(t.Context(), 1<<20)
	a.Claim(0)
	a.Follow(s)
	for range 8 {
		a.mu.Lock()
		a.pace.target = a.connections
		a.load()
		a.mu.Unlock()
	}
	return a
}

func (a *Ahead) memory() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// The first blob leaves the others their shares, once it has read what it has; together they have no more than there
// is. Seen to fail with the whole memory as everybody's share.
func TestBlobsShareTheMemory(t *testing.T) {
	p := NewPool(Settings{Connections: 16, PerHost: 100, Size: 16 * kib, Memory: 128 * kib})
	s := &endless{ready: make(chan struct{})}
	close(s.ready)
	first := hungry(t, p, s)
	second := hungry(t, p, s)
	if first.memory() != 128*kib || second.memory() != 0 {
		t.Errorf("the first has %d bytes, the second %d", first.memory(), second.memory())
	}
	buf := make([]byte, 16*kib)
	offset := int64(16 * kib) // the reader's own range
	first.Unclaim()
	for range 6 {
		for end := offset + 16*kib; offset < end; {
			offset += int64(first.Read(buf[:min(int64(len(buf)), end-offset)], offset))
		}
	}
	second.Follow(s)
	if first.memory() > 64*kib || second.memory() != 64*kib || p.Mapped() > 128*kib {
		t.Errorf("the first has %d bytes, the second %d, and the pool %d", first.memory(), second.memory(), p.Mapped())
	}
	first.Close()
	if p.Mapped() == 0 {
		t.Error("the second has lost its memory")
	}
	second.Close()
	if p.Mapped() != 0 {
		t.Errorf("%d bytes are left", p.Mapped())
	}
}

// A pool that gets smaller gives back what is above its bound as blobs are read.
func TestASmallerBoundHoldsAsBlobsGoOn(t *testing.T) {
	p := NewPool(Settings{Connections: 16, PerHost: 100, Size: 16 * kib, Memory: 128 * kib})
	s := &endless{ready: make(chan struct{})}
	close(s.ready)
	a := hungry(t, p, s)
	defer a.Close()
	p.Configure(Settings{Connections: 16, PerHost: 100, Size: 16 * kib, Memory: 32 * kib})
	a.Unclaim()
	buf := make([]byte, 16*kib)
	for offset := int64(16 * kib); offset < 512*kib; {
		n := a.Read(buf, offset)
		if n == 0 {
			t.Fatalf("at byte %d nothing is loaded", offset)
		}
		offset += int64(n)
	}
	if p.Mapped() > 32*kib {
		t.Errorf("the pool has %d bytes", p.Mapped())
	}
}

// What waits to read on comes before what is loaded ahead, in its order. Seen to fail with a release that
// leaves the connection free for whoever comes next.
func TestReadersComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Settings{PerHost: 2})
		for range 2 {
			if err := p.Acquire(t.Context(), "h"); err != nil {
				t.Fatal(err)
			}
		}
		var order []int
		var mu sync.Mutex
		for i := range 3 {
			go func() {
				if p.Acquire(t.Context(), "h") == nil {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gaveUp := errors.New("gave up")
		ended := make(chan error)
		go func() { ended <- p.Acquire(ctx, "h") }()
		synctest.Wait()
		cancel(gaveUp)
		if err := <-ended; !errors.Is(err, gaveUp) {
			t.Errorf("a reader that gave up: %v", err)
		}
		p.Release("h")
		if p.tryAcquire("h") {
			t.Error("a range that is loaded ahead overtakes a reader")
		}
		synctest.Wait()
		p.Release("h")
		synctest.Wait()
		p.Release("h")
		synctest.Wait()
		mu.Lock()
		if len(order) != 3 || order[0] != 0 || order[1] != 1 || order[2] != 2 {
			t.Errorf("served in the order %v", order)
		}
		mu.Unlock()
		p.Release("h")
		p.Release("h")
		if len(p.hosts) != 0 {
			t.Errorf("hosts that are not forgotten: %v", p.hosts)
		}
	})
}

// A host that complains gets half of the connections, and more again as ranges come; after some minutes all. Seen to
// fail without Complained.
func TestAHostThatComplainsGetsFewerConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Settings{PerHost: 8})
		take := func() (n int) {
			for p.tryAcquire("h") {
				n++
			}
			return n
		}
		if n := take(); n != 8 {
			t.Fatalf("%d connections", n)
		}
		p.Complained("h", 3*time.Second)
		p.Complained("h", 3*time.Second) // the answer to a request that was on its way
		for range 6 {
			p.Release("h")
		}
		time.Sleep(2900 * time.Millisecond)
		if take() != 0 {
			t.Error("the host is not left alone")
		}
		time.Sleep(200 * time.Millisecond)
		if n := take(); n != 2 {
			t.Errorf("%d connections beside 2, want 4 in all", n)
		}
		for range recovery {
			p.worked("h")
		}
		if n := take(); n != 1 {
			t.Errorf("%d connections more after %d good ranges", n, recovery)
		}
		for range 5 {
			p.Release("h")
		}
		time.Sleep(forgetting)
		if n := take(); n != 8 {
			t.Errorf("%d connections after %v", n, forgetting)
		}
		for range 8 {
			p.Release("h")
		}
		if len(p.hosts) != 0 {
			t.Errorf("hosts that are not forgotten: %v", p.hosts)
		}
	})
}

// Connections are added while the reader waits, and taken back where it does not.
func TestThePaceFollowsTheReader(t *testing.T) {
	var p pace
	p.target = 1
	now := time.Now()
	step := func(wait, work time.Duration, times int) {
		for range times {
			now = now.Add(wait)
			p.note(now, wait, 8)
			now = now.Add(work)
		}
	}
	if step(0, 10*time.Millisecond, 100); p.target != 1 {
		t.Errorf("a reader that does not wait has %d connections", p.target)
	}
	if step(10*time.Millisecond, time.Millisecond, 100); p.target != 8 {
		t.Errorf("a reader that waits has %d connections", p.target)
	}
	if step(0, 10*time.Millisecond, 2000); p.target != 1 {
		t.Errorf("a reader that waits no more has %d connections", p.target)
	}
}

// A blob that is small, or whose settings say so, is not loaded ahead.
func TestOneConnectionIsEnough(t *testing.T) {
	for _, c := range []struct {
		settings Settings
		size     int64
	}{
		{Settings{}, 2*Default.Size - 1}, {Settings{Connections: 1}, 1 << 40}, {Settings{PerHost: 1}, 1 << 40},
		{Settings{Size: 2 << 20, Memory: 1 << 20}, 1 << 40},
	} {
		if a := NewPool(c.settings).NewAhead(t.Context(), c.size); a != nil {
			a.Close()
			t.Errorf("%+v", c)
		}
	}
}
