package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/internal/registrytest"
	"berth/test/conformance/images"
	"berth/test/node"
)

// settings are the flags.
type settings struct {
	cache   string
	runtime string
	address string
	hosts   string
	phases  string
	focus   string
	handler string
	api     string
	setup   string
	cni     bool
	seed    int64
	limit   time.Duration
	verbose bool
	prepare bool
}

func main() {
	var s settings
	flag.StringVar(&s.cache,
		"cache", "", "directory for tools, packages, images and results (default: berth/conformance in the user's cache)")
	flag.StringVar(&s.runtime, "runtime", "berth", "what to start: berth, or containerd (Debian's)")
	flag.StringVar(&s.address, "address", "", "the socket of a running runtime, in place of -runtime; needs -hosts-dir")
	flag.StringVar(&s.hosts,
		"hosts-dir", "", "where the runtime at -address reads hosts.toml files; mirrors are written there")
	flag.StringVar(&s.phases, "phases", "spdy,websocket,twice",
		"what to run: spdy, websocket, twice (both at the same time), or rest (what twice does not run)")
	flag.StringVar(&s.focus, "focus", "", "run only specs whose text matches this regular expression")
	flag.StringVar(&s.handler, "runtime-handler", "", "runtime handler of every pod")
	flag.StringVar(&s.setup,
		"setup", "", "setup of the default runtime handler: stage (also where it is not given), or libcontainer")
	flag.StringVar(&s.api,
		"api", "v1", "the version of the interface that critest's calls are made through: v1, or v1alpha2")
	flag.DurationVar(&s.limit, "limit", 15*time.Minute, "longest time of one run of critest")
	flag.BoolVar(&s.cni, "cni", false, "give berthd a CNI configuration (Debian's plugins) in place of its own bridge")
	flag.Int64Var(&s.seed, "seed", time.Now().Unix(), "seed of the order in which specs run")
	flag.BoolVar(&s.verbose, "v", false, "show what critest prints")
	flag.BoolVar(&s.prepare, "prepare", false, "fill the cache with tools and images, and run nothing")
	flag.Parse()
	// A reader of the output that goes away (`| head`) must not end this before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := conformance(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// conformance prepares, runs each phase against a fresh runtime, and sums up.
func conformance(ctx context.Context, s settings) error {
	if s.address != "" && s.hosts == "" {
		return errors.New("-address needs -hosts-dir")
	}
	if s.api != "v1" && s.api != "v1alpha2" {
		return fmt.Errorf("unknown API %q: v1 or v1alpha2", s.api)
	}
	phases, err := parsePhases(s.phases, s.focus)
	if err != nil {
		return err
	}
	if s.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		s.cache = filepath.Join(dir, "berth", "conformance")
	}
	start := time.Now()
	tools, err := buildTools(ctx, filepath.Join(s.cache, "bin"))
	if err != nil {
		return err
	}
	fmt.Printf("critest and crictl %s: %v\n", tools.version, elapsed(start))
	start = time.Now()
	built, err := images.Cached(ctx, filepath.Join(s.cache, "images"), filepath.Join(s.cache, "packages"), images.Build)
	if err != nil {
		return err
	}
	fmt.Printf("%d images: %v\n", len(built), elapsed(start))
	if s.prepare {
		return nil
	}
	defer func() {
		if err := node.Cleanup(); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
	}()
	if s.address == "" && s.runtime == "berth" {
		start = time.Now()
		if _, err := node.Binaries(ctx); err != nil {
			return err
		}
		fmt.Printf("berthd and its keeper: %v\n", elapsed(start))
	}
	results := filepath.Join(s.cache, "results")
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	var summary []string
	failed := false
	for _, phase := range phases {
		start = time.Now()
		reports, err := runPhase(ctx, s, tools, built, phase, results)
		if err != nil {
			fmt.Printf("%s: %v\n", phase.name, err)
			failed = true
		}
		for _, r := range reports {
			r.print(os.Stdout)
			failed = failed || r.unexpected() > 0
			summary = append(summary, r.line())
		}
		fmt.Printf("%s: %v in all\n\n", phase.name, elapsed(start))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Println(strings.Join(summary, "\n"))
	fmt.Printf("reports and logs: %s\n", results)
	if failed {
		return errors.New("failed")
	}
	return nil
}

// target is a runtime under test, and how to end it.
type target struct {
	address string
	nri     string // the socket of its NRI; empty: there is none
	log     func() string
	node    *node.Node // nil: not ours
	stop    func() error
}

// startTarget starts the runtime that the settings name and points it at a registry with the images.
func startTarget(ctx context.Context, s settings, built images.Images) (*target, error) {
	registry, err := registrytest.New()
	if err != nil {
		return nil, err
	}
	t := &target{address: s.address, stop: registry.Close, log: func() string { return "" }}
	if err := built.Push(registry); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	hosts := s.hosts
	if s.address == "" {
		if err := t.startNode(ctx, s, registry); err != nil {
			return nil, errors.Join(err, registry.Close())
		}
		hosts = t.node.HostsDir
	}
	// Once as a mirror and once as the registry itself: containerd 1.6 reads no hosts.toml that names a server alone.
	if err := registrytest.Mirrors(hosts, images.Hosts, registry, registry); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	if s.api == "v1" {
		return t, nil
	}
	p, err := openProxy(s.api, t.address)
	if err != nil {
		return nil, errors.Join(err, t.stop())
	}
	stop := t.stop
	t.address, t.stop = p.address, func() error { return errors.Join(p.close(), stop()) }
	return t, nil
}

// slowPlugins is for specs whose plugins take two seconds to join, which is all that they may take by default.
const slowPlugins = "[nri]\nplugin_request_timeout = \"10s\"\n"

func (t *target) startNode(ctx context.Context, s settings, registry *registrytest.Registry) error {
	var n *node.Node
	var err error
	switch s.runtime {
	case "berth":
		n, err = node.Start(ctx, node.Options{
			Registry: registry, CNI: s.cni, Setup: s.setup, Tables: slowPlugins,
			Prepare: func(n *node.Node) error { return os.MkdirAll(filepath.Dir(n.NRISocket), 0o700) },
		})
	case "containerd":
		n, err = node.StartContainerd(ctx, node.Options{Registry: registry})
	default:
		err = fmt.Errorf("unknown runtime %q: berth or containerd", s.runtime)
	}
	if err != nil {
		return err
	}
	t.node, t.address, t.log = n, n.Address, n.LogTail
	if s.runtime == "berth" {
		t.nri = n.NRISocket
	}
	t.stop = func() error { return errors.Join(n.Stop(), registry.Close()) }
	return nil
}

func elapsed(start time.Time) time.Duration { return time.Since(start).Round(100 * time.Millisecond) }
