package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

// options are the sizes of a run, a field for each flag.
type options struct {
	addresses  addresses
	berth      bool
	base       string
	containerd bool
	config     string
	image      string
	rounds     int
	turns      int
	lives      int
	execs      int
	pods       int
	burst      int
	firsts     int
	logMiB     int
	lineBytes  int
	pullMiB    int
	pulls      int
	layerMiB   int
	layerRate  int
	settle     time.Duration
	costs      int
	idle       time.Duration
	span       time.Duration
	unconfined bool
	cni        bool
	crowd      int
	json       string
	svg        string
	samples    string
}

// addresses are peers that run already: NAME=unix:///path.
type addresses []string

func (a *addresses) String() string { return strings.Join(*a, " ") }

func (a *addresses) Set(value string) error {
	name, address, ok := strings.Cut(value, "=")
	if !ok || name == "" || !strings.HasPrefix(address, "unix://") {
		return errors.New("want NAME=unix:///path")
	}
	*a = append(*a, value)
	return nil
}

func main() {
	var o options
	flag.Var(&o.addresses, "address", "a runtime that runs already, as `NAME=unix:///path`; may be repeated")
	flag.BoolVar(&o.berth, "berth", true, "start a private Berth")
	flag.StringVar(&o.base,
		"base", "", "start one more private Berth, with the programs of this `directory`: a peer named base")
	flag.BoolVar(&o.containerd, "containerd", false,
		"start a private containerd (Debian: containerd, runc, containernetworking-plugins)")
	flag.StringVar(&o.config, "config", "", "further lines of the private Berth's config.toml, before its tables")
	flag.StringVar(&o.image,
		"image", "", "the busybox image that peers of -address use; empty: one from a registry on loopback")
	flag.IntVar(&o.rounds, "rounds", 10, "turns that each peer gets with pods one after another")
	flag.IntVar(&o.turns, "turns", 3, "turns that it gets with several in flight, and with the log")
	flag.IntVar(&o.lives, "lives", 3, "pods started, probed and removed one after another in a turn")
	flag.IntVar(&o.execs, "execs", 5, "exec probes in each of these pods")
	flag.IntVar(&o.pods, "pods", 100,
		"pods that are there when memory, idle CPU and lists are measured; 0: leave those rows out")
	flag.IntVar(&o.burst, "burst", 50, "pods started with 10 in flight; 0: leave the row out")
	flag.IntVar(&o.firsts, "firsts", 5,
		"how often a further runtime is started, whose first pod is measured; 0: leave the row out")
	flag.IntVar(&o.logMiB, "log", 256, "MiB that a container writes to its log; 0: leave the row out")
	flag.IntVar(&o.lineBytes, "line", 100, "bytes of a line of it")
	flag.IntVar(&o.pullMiB, "pull", 300, "MiB of gzip, in 9 layers, that are pulled; 0: leave the row out")
	flag.IntVar(&o.pulls, "pulls", 3, "how often")
	flag.IntVar(&o.layerMiB, "layer", 64,
		"MiB of gzip, in one layer, that are pulled from a registry which limits each connection; 0: leave the row out")
	flag.IntVar(&o.layerRate, "layer-rate", 50, "MB a second that it sends over a connection")
	flag.IntVar(&o.costs, "costs", 20,
		"pods, and execs, whose processor time is measured together in a turn; 0: leave the rows out")
	flag.DurationVar(&o.settle, "settle", 5*time.Second, "how long a runtime is left alone before its memory is read")
	flag.DurationVar(&o.idle, "idle", 10*time.Second, "how long idle CPU is measured")
	flag.DurationVar(&o.span, "span", 2*time.Second, "how long a turn of probes with 8 in flight takes")
	flag.BoolVar(&o.unconfined, "unconfined", false, "give containers no seccomp profile, in place of the default one")
	flag.BoolVar(&o.cni, "cni", false,
		"start one more private Berth, with the CNI plugins that containerd has (Debian: containernetworking-plugins)")
	flag.IntVar(&o.crowd, "crowd", 0,
		"pods beside which one more is started, lists are read and the daemon is killed; 0: leave those rows out")
	flag.StringVar(&o.svg, "svg", "", "a `file` for a chart of how the first two peers compare")
	flag.StringVar(&o.samples,
		"samples", "", "a `file` to which every sample is appended in the format of Go's benchmarks")
	flag.StringVar(&o.json, "json", "", "a `file` for the result as JSON; - is stdout, in place of the table")
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
	for name, value := range map[string]int{"rounds": o.rounds, "turns": o.turns, "lives": o.lives, "execs": o.execs} {
		if value < 1 {
			return nil, fmt.Errorf("-%s must be at least 1", name)
		}
	}
	if o.layerRate < 1 {
		return nil, errors.New("-layer-rate must be at least 1")
	}
	if o.lineBytes < 2 {
		return nil, errors.New("-line must be at least 2")
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
		return nil, errors.New("no peer: give -berth, -containerd or -address")
	}
	r = newReport(peers)
	if err := measure(ctx, o, dir, registry, peers, r); err != nil {
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
func measure(ctx context.Context, o *options, dir string, registry *registrytest.Registry,
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
	inTurns := func(peers []*peer, rounds int, what string, turn func(*peer) error) error {
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
	if err := turns(o.turns, "processor time", func(p *peer) error { return p.cost(ctx, o, r.of(p)) }); err != nil {
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
	if o.crowd > 0 {
		for _, p := range peers {
			progress("%s: %d pods", p.name, o.crowd)
			if err := p.crowd(ctx, o, r.of(p)); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
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
