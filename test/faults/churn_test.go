package faults

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

// number is an environment variable, or its default.
func number(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := number(t, "BERTH_FAULT_SEED", time.Now().UnixNano())
	t.Logf("BERTH_FAULT_SEED=%d", seed)
	return rand.New(rand.NewSource(seed))
}

// churn is pods that come and go while something else fails. Each counts what it was promised: that its program
// runs once, ends with its own code and has all its lines in the log; that an exec or attach which is answered
// for has all its bytes; and that a pull stays.
type churn struct {
	trap
	n      *node.Node
	counts *counts
	dir    string // of the host: each program writes a line to a file of its own there
	images []churnImage
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	serial atomic.Int64
	lives  atomic.Int64 // that came to their end
	kills  atomic.Int64
	mu     sync.Mutex // guards errors
	errors []error
	// orphans says that keepers are killed: what ends meanwhile has no exit code where the kernel keeps none.
	orphans atomic.Bool
	// lossy says that both are killed and nobody keeps descriptors: a line that is missing does not come later.
	lossy atomic.Bool
}

// startChurn has a third of the workers run programs that end by themselves, a third use programs that are stopped,
// and a third pull.
func startChurn(t *testing.T, n *node.Node, workers int) *churn {
	t.Helper()
	nodetest.Pull(t, n, node.Busybox)
	c := &churn{n: n, counts: count(t), dir: t.TempDir(), images: pushImages(t, n, (workers+2)/3)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	lives := []func(worker int) error{c.brief, c.served, c.pulls}
	for i := range workers {
		c.wg.Go(func() {
			for c.ctx.Err() == nil {
				err := lives[i%len(lives)](i)
				switch {
				case err == nil:
					c.lives.Add(1)
				case away(err): // of a call that nobody makes again
					time.Sleep(20 * time.Millisecond)
				default:
					c.failed(err)
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	return c
}

func (c *churn) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors = append(c.errors, err)
}

// wrong counts something that was not as promised, and is the error that says so.
func (c *churn) wrong(column tally.Column, n int64, format string, args ...any) error {
	c.counts.add(column, n)
	return fmt.Errorf(format, args...)
}

// finish lets the pods that are on their way end, and reports what went wrong beyond the kills.
func (c *churn) finish(t *testing.T) {
	t.Helper()
	c.stop()
	c.wg.Wait()
	t.Logf("%d lives of pods came to their end", c.lives.Load())
	if c.lives.Load() == 0 {
		t.Error("no pod lived its whole life")
	}
	for i, err := range c.errors {
		if i == 10 {
			t.Errorf("and %d more", len(c.errors)-i)
			break
		}
		t.Error(err)
	}
}

// away says that a call failed because daemon or keeper was gone: what a client tries again.
func away(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Canceled
}

// once makes a call that a kill may be timed to.
func (c *churn) once(kind call, make func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(2*time.Minute))
	defer cancel()
	defer c.pass(kind)()
	return make(ctx)
}

// again makes a call until it is answered.
func again(what string, call func(context.Context) error) error {
	deadline := time.Now().Add(node.Patience(2 * time.Minute))
	for {
		ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
		err := call(ctx)
		cancel()
		switch {
		case err == nil:
			return nil
		case !away(err):
			return fmt.Errorf("%s: %w", what, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%s: not answered for two minutes: %w", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// again is the same for a call that a kill may be timed to.
func (c *churn) again(kind call, make func(context.Context) error) error {
	return again(string(kind), func(ctx context.Context) error {
		defer c.pass(kind)()
		return make(ctx)
	})
}

// nothingLeft removes every pod and counts what is left of them.
func nothingLeft(t *testing.T, n *node.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := n.RemoveAll(ctx); err != nil {
		t.Fatal(err)
	}
	left, err := n.Settled(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	c := count(t)
	c.add(tally.Leaked, int64(left.Count()))
	if left.Count() > 0 {
		t.Errorf("left behind:\n%s", left)
	}
	c.after(t, n)
}
