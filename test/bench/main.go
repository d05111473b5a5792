package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

func main() {
	var o options
	o.flags()
	flag.Parse()
	// A reader of the output that goes away (`| head`) must not end this before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "bench: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	r, err := run(ctx, &o)
	if err == nil {
		err = r.write(o.json, os.Stdout)
	}
	if err == nil && o.svg != "" {
		err = r.chart(o.svg)
	}
	if err == nil && o.growth != "" {
		err = r.growthChart(o.growth)
	}
	if err == nil && o.samples != "" {
		err = r.append(o.samples)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run starts the peers, measures them and ends them.
func run(ctx context.Context, o *options) (r *report, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a runtime needs root, and so does the measurement of its memory")
	}
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), node.Cleanup()) }()
	registry, err := node.NewRegistry()
	if err != nil {
		return nil, err
	}
	defer registry.Close()
	peers, err := startPeers(ctx, o, dir, registry)
	defer func() {
		for _, p := range peers {
			err = errors.Join(err, p.close())
		}
	}()
	if err != nil {
		return nil, err
	}
	if len(peers) == 0 {
		return nil, errors.New("no peer: give -berth, -containerd, -debian-containerd or -peer")
	}
	tracing := filepath.Join(dir, "tracing")
	if err := os.Mkdir(tracing, 0o700); err != nil {
		return nil, err
	}
	traces, unmount := tracesDirectory(tracing)
	defer func() { err = errors.Join(err, unmount()) }()
	r = newReport(peers)
	if err := measure(ctx, o, dir, traces, registry, peers, r); err != nil {
		return nil, err
	}
	r.moveCNI()
	r.Finished = time.Now()
	return r, nil
}

// cniPeer is the Berth whose pods have the network of CNI plugins. Only its starts count.
const cniPeer = "berth-cni"

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// measure fills the report. Memory comes first, while the daemons are fresh.
func measure(ctx context.Context, o *options, dir, traces string, registry *registrytest.Registry,
	peers []*peer, r *report) error {
	for _, p := range peers {
		progress("%s: a first pod", p.name)
		if err := p.warm(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	lives := peers
	peers = slices.DeleteFunc(slices.Clone(peers), func(p *peer) bool { return p.name == cniPeer })
	if o.pods > 0 {
		for _, p := range peers {
			progress("%s: memory, idle CPU and lists with %d pods", p.name, o.pods)
			if err := p.density(ctx, o, r.of(p)); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	turns := func(rounds int, what string, turn func(*peer) error) error { return inTurns(peers, rounds, what, turn) }
	if err := inTurns(lives, o.rounds, "pods and probes", func(p *peer) error {
		for range o.lives {
			if err := p.life(ctx, o.execs, r.of(p)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	cost := func(p *peer) error { return p.cost(ctx, o, traces, r.of(p)) }
	if err := turns(o.turns, "processor time", cost); err != nil {
		return err
	}
	private := slices.DeleteFunc(slices.Clone(peers), func(p *peer) bool { return p.fresh == nil })
	if err := inTurns(private, o.firsts, "first pods", func(p *peer) error { return p.first(ctx, r.of(p)) }); err != nil {
		return err
	}
	if err := turns(o.turns, "probes with 8 in flight", func(p *peer) error {
		return p.probes(ctx, 8, o.span, r.of(p))
	}); err != nil {
		return err
	}
	if o.burst > 0 {
		if err := turns(o.turns, "pods with 10 in flight", func(p *peer) error {
			return p.burst(ctx, 10, o.burst, r.of(p))
		}); err != nil {
			return err
		}
	}
	if o.logMiB > 0 {
		lines, err := makeLines(dir, o.logMiB, o.lineBytes)
		if err != nil {
			return err
		}
		if err := turns(o.turns, "log", func(p *peer) error { return p.logs(ctx, lines, r.of(p)) }); err != nil {
			return err
		}
	}
	if o.pullMiB > 0 && o.pulls > 0 {
		if err := pulls(ctx, o, registry, turns, r); err != nil {
			return err
		}
	}
	if o.layerMiB > 0 && o.pulls > 0 {
		if err := pullsOfALayer(ctx, o, registry, turns, r); err != nil {
			return err
		}
	}
	if len(o.crowds) > 0 {
		for _, p := range peers {
			if err := p.growth(ctx, o, traces, r.of(p)); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// inTurns gives each peer its turn, so many times.
func inTurns(peers []*peer, rounds int, what string, turn func(*peer) error) error {
	for i := range rounds {
		progress("%s: round %d of %d", what, i+1, rounds)
		for j := range peers {
			p := peers[(i+j)%len(peers)] // nobody is always first
			if err := turn(p); err != nil {
				return fmt.Errorf("%s: %s: %w", p.name, what, err)
			}
		}
	}
	return nil
}

// pulls measures pulls of a large image, and of the same with one layer missing.
func pulls(ctx context.Context, o *options, registry *registrytest.Registry,
	turns func(rounds int, what string, turn func(*peer) error) error, r *report) error {
	progress("packing an image of %d MiB", o.pullMiB)
	image, err := bigImage(o.pullMiB)
	if err != nil {
		return err
	}
	if err := registry.Push(bigName, image); err != nil {
		return err
	}
	runtime.GC()
	if err := turns(o.pulls, "pull", func(p *peer) error {
		return p.pull(ctx, registry, bigName, image, r.of(p), rowPull)
	}); err != nil {
		return err
	}
	return oneMissing(ctx, o, registry, image, turns, r)
}
