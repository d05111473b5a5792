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

	"berth/test/conformance/ginkgo"
	"berth/test/conformance/images"
	"berth/test/kubernetes"
	"berth/test/node"
)

// settings are the flags, which the program inside the namespaces gets too.
type settings struct {
	Runtime     string
	Focus, Skip string
	Labels      string
	Gates       string
	Procs       int
	Seed        int64
	Limit       time.Duration
	Verbose     bool
	SystemBus   bool
	Results     string // where reports and logs are kept
	Cache       string
}

// usual are the specs that run where no label filter is given: those of a node's conformance, but for what changes the
// whole machine (huge pages) or measures it.
const usual = "NodeConformance && !Feature: containsAny { HugePages }"

// smaller is the choice that -smoke makes: no serial and slow specs, and of the others none that sleep for most of a
// minute, and no variations of what is there.
var smaller = settings{
	Procs:  16,
	Labels: "NodeConformance && !Serial && !Slow",
	Skip: strings.Join([]string{
		`should \*not\*`, "monotonically", "Device Plugin", "Probing restartable", "bad image", "starts and exits",
		"(before|after) restartable", "image updated", "updates should", "infrequently", "exec readiness", "never be ready",
		"GRPC", "with timeout", "longer than", "startup probe", "PreStop hook", "is terminating", "while pending",
		"in progress of", "forcibly", "multiple times", "Summary",
	}, "|"),
}

func main() {
	if done, err := standIn(os.Args); done {
		exit(err)
	}
	if len(os.Args) == 3 && os.Args[1] == insideArgument {
		exit(inside(os.Args[2]))
	}
	var s settings
	prepare := flag.Bool("prepare", false, "fill the cache with programs and images, and run nothing")
	flag.StringVar(&s.Cache, "cache", "",
		"directory for packages, images and results (default: berth/conformance in the user's cache)")
	flag.StringVar(&s.Runtime, "runtime", "berth", "what to start: berth, or containerd (Debian's)")
	flag.StringVar(&s.Focus, "focus", "", "run only specs whose text matches this regular expression")
	flag.StringVar(&s.Skip, "skip", "", "leave out specs whose text matches this regular expression")
	flag.StringVar(&s.Labels, "label-filter", usual,
		"run only specs whose labels match this filter of Ginkgo's; empty: all")
	flag.StringVar(&s.Gates, "feature-gates", "", "feature gates of the kubelet and the API server: A=true,B=false")
	flag.IntVar(&s.Procs, "procs", 6, "specs at a time; serial ones run alone, after the others")
	flag.Int64Var(&s.Seed, "seed", time.Now().Unix(), "seed of the order in which specs run")
	flag.DurationVar(&s.Limit, "limit", 3*time.Hour, "longest time of the suite")
	flag.BoolVar(&s.Verbose, "v", false, "show what the suite prints")
	flag.BoolVar(&s.SystemBus, "system-bus", false, "let the kubelet and specs use the machine's D-Bus, as graceful "+
		"shutdown needs it. They announce shutdowns there, so the machine should be one that is made for tests")
	smoke := flag.Bool("smoke", false, "a smaller choice, of a few minutes; further flags change it")
	flag.Parse()
	if *smoke {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		s.choose(smaller, given)
	}
	// A reader of the output that goes away (`| head`) must not end this before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	exit(conformance(ctx, s, *prepare))
}

// choose takes another choice of specs, except what the given flags say.
func (s *settings) choose(from settings, given map[string]bool) {
	if !given["procs"] {
		s.Procs = from.Procs
	}
	if !given["label-filter"] {
		s.Labels = from.Labels
	}
	if !given["skip"] {
		s.Skip = from.Skip
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "nodeconformance:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// buildPrograms returns the paths of Kubernetes' programs by their names, and builds those that the user's cache does
// not have.
func buildPrograms(ctx context.Context) (map[string]string, error) {
	programs := map[string]string{}
	for _, p := range []kubernetes.Program{kubernetes.Kubelet, kubernetes.SampleDevicePlugin, kubernetes.Ginkgo,
		kubernetes.NodeTests, kubernetes.Agnhost} {
		path, err := p.Build(ctx)
		if err != nil {
			return nil, err
		}
		programs[filepath.Base(path)] = path
	}
	return programs, nil
}

// conformance builds what is needed, runs the suite and sums up.
func conformance(ctx context.Context, s settings, prepare bool) error {
	if s.Runtime != "berth" && s.Runtime != "containerd" {
		return fmt.Errorf("unknown runtime %q: berth or containerd", s.Runtime)
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces, mounts and cgroups need root")
	}
	if s.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		s.Cache = filepath.Join(dir, "berth", "conformance")
	}
	programs, err := buildPrograms(ctx)
	if err != nil {
		return err
	}
	source, err := kubernetes.Directory(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	built, err := images.Cached(ctx, filepath.Join(s.Cache, "node-images"), filepath.Join(s.Cache, "packages"),
		func(ctx context.Context, packages string) (images.Images, error) {
			return images.ForNode(ctx, packages, images.Sources{
				Agnhost: programs["agnhost"], SampleDevicePlugin: programs["sample-device-plugin"],
				Directory: filepath.Join(source, "test", "images"),
			})
		})
	if err != nil {
		return err
	}
	fmt.Printf("%d images: %v\n", len(built), time.Since(start).Round(100*time.Millisecond))
	if prepare {
		return nil
	}
	berth, err := node.Binaries(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := node.Cleanup(); err != nil {
			fmt.Fprintln(os.Stderr, "nodeconformance:", err)
		}
	}()
	for _, name := range []string{"berthd", "berth-keeper", "berth-unpack", "berth"} {
		programs[name] = filepath.Join(berth, name)
	}
	if programs["nodeconformance"], err = os.Executable(); err != nil {
		return err
	}
	s.Results = filepath.Join(s.Cache, "results", "node-"+s.Runtime)
	if err := os.RemoveAll(s.Results); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Results, 0o755); err != nil {
		return err
	}
	runErr := enter(ctx, s, programs)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), runErr)
	}
	r, err := readSummary(s)
	if err != nil {
		return errors.Join(err, runErr)
	}
	r.Print(os.Stdout, s.Runtime)
	fmt.Printf("report and logs: %s\n", s.Results)
	return errors.Join(runErr, r.Verdict())
}

// readSummary reads what the suite has reported.
func readSummary(s settings) (*ginkgo.Summary, error) {
	data, err := os.ReadFile(filepath.Join(s.Results, reportFile))
	if err != nil {
		return nil, err
	}
	lacking, err := readLacking(s.Results)
	if err != nil {
		return nil, err
	}
	return ginkgo.Summarize(data, expectations(s.Runtime, lacking))
}
