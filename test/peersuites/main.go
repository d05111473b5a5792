package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
)

// settings are the flags.
type settings struct {
	cache   string
	suites  string
	runtime string
	focus   *regexp.Regexp
	verbose bool
}

func (s settings) focused(name string) bool { return s.focus == nil || s.focus.MatchString(name) }

// say prints results as they come.
func (s settings) say(results []result) []result {
	for _, r := range results {
		fmt.Printf("  %-8s %s (%v)\n", r.outcome, r.name, r.took.Round(10*time.Millisecond))
		if s.verbose && r.outcome == failed {
			fmt.Println(r.text)
		}
	}
	return results
}

// suite is one peer's suite.
type suite struct {
	name string
	run  func(context.Context, settings, *node.Node) ([]result, error)
	// expected are the failures that Berth has: the reason of each. leftOut are the stories that are not run.
	expected, leftOut map[string]string
	// unsteady are stories whose failure says nothing: the reason of each.
	unsteady map[string]string
}

var suites = []suite{
	{"containerd", containerdSuite, containerdExpected, containerdLeftOut, containerdUnsteady},
	{"crio", crioSuite, crioExpected, crioLeftOut, nil},
}

func main() {
	var s settings
	var focus string
	flag.StringVar(&s.cache, "cache", "", "directory for what is built (default: berth/peersuites in the user's cache)")
	flag.StringVar(&s.suites, "suites", "containerd,crio", "whose suites to run")
	flag.StringVar(&s.runtime, "runtime", "berth",
		"what to run them against: berth, or containerd (Debian's), whose failures are only said")
	flag.StringVar(&focus, "focus", "", "run only stories whose name matches this regular expression")
	flag.BoolVar(&s.verbose, "v", false, "show what a suite prints of a failure")
	flag.Parse()
	// A reader of the output that goes away (`| head`) must not end this before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := s.setFocus(focus)
	if err == nil {
		err = run(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peersuites:", err)
		stop()
		os.Exit(1)
	}
}

func (s *settings) setFocus(expression string) (err error) {
	if expression != "" {
		s.focus, err = regexp.Compile(expression)
	}
	return err
}

func run(ctx context.Context, s settings) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root")
	}
	if s.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		s.cache = filepath.Join(dir, "berth", "peersuites")
	}
	if err := os.MkdirAll(s.cache, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Cleanup()) }()
	var complaints, summary []string
	for _, name := range strings.Split(s.suites, ",") {
		found := false
		for _, one := range suites {
			if one.name != name {
				continue
			}
			found = true
			said, counts, err := one.against(ctx, s)
			if err != nil {
				return fmt.Errorf("%s's suite: %w", name, err)
			}
			complaints, summary = append(complaints, said...), append(summary, counts)
		}
		if !found {
			return fmt.Errorf("unknown suite %q", name)
		}
	}
	fmt.Println(strings.Join(summary, "\n"))
	if len(complaints) > 0 && s.runtime == "berth" {
		return fmt.Errorf("%d results are not as listed:\n  %s", len(complaints), strings.Join(complaints, "\n  "))
	}
	return nil
}

// against runs the suite against a fresh runtime, which must have nothing left of it in the end.
func (one suite) against(ctx context.Context, s settings) (complaints []string, counts string, err error) {
	n, err := startNode(ctx, s)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, n.Stop(), n.Registry.Close()) }()
	start := time.Now()
	results, err := one.run(ctx, s, n)
	took := time.Since(start)
	reasons(os.Stdout, results, one.expected, one.unsteady)
	if err != nil {
		return nil, "", fmt.Errorf("%w\n%s", err, n.LogTail())
	}
	whole := s.focus == nil
	complaints = verdictOf(results, one.expected, one.unsteady, whole)
	if whole {
		complaints = append(complaints, unknown(one.leftOut, results)...)
		complaints = append(complaints, unknown(one.unsteady, results)...)
	}
	return complaints, line(one.name, results, took), nil
}

// startNode starts the runtime, with a registry that has the images of all suites.
func startNode(ctx context.Context, s settings) (*node.Node, error) {
	registry, err := registrytest.New()
	if err != nil {
		return nil, err
	}
	n, err := startWith(ctx, s, registry)
	if err != nil {
		return nil, errors.Join(err, registry.Close())
	}
	// Once as a mirror and once as the registry itself: containerd 1.6 reads no hosts.toml that names a server alone.
	if err := registrytest.Mirrors(n.HostsDir, imageHosts, registry, registry); err != nil {
		return nil, errors.Join(err, n.Stop(), registry.Close())
	}
	return n, nil
}

func startWith(ctx context.Context, s settings, registry *registrytest.Registry) (*node.Node, error) {
	if err := pushImages(ctx, registry, filepath.Join(s.cache, "packages")); err != nil {
		return nil, err
	}
	switch s.runtime {
	case "berth":
		return node.Start(ctx, node.Options{
			Registry: registry,
			Prepare:  func(n *node.Node) error { return os.MkdirAll(filepath.Dir(n.NRISocket), 0o700) },
		})
	case "containerd":
		return node.StartContainerd(ctx, node.Options{Registry: registry})
	}
	return nil, fmt.Errorf("unknown runtime %q: berth or containerd", s.runtime)
}

// afterStory removes the pods that a story has left. One of Berth's that leaves more than pods fails the run.
func afterStory(ctx context.Context, n *node.Node, name string) error {
	pods, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		fmt.Printf("  %s has left %d pods\n", name, len(pods.Items))
		if err := n.RemoveAll(ctx); err != nil {
			return fmt.Errorf("remove the pods that %s has left: %w", name, err)
		}
	}
	if n.Containerd {
		return nil
	}
	left, err := n.Settled(time.Minute)
	if err != nil {
		return err
	}
	if left.Count() > 0 {
		return fmt.Errorf("after %s the runtime leaves behind:\n%s", name, left)
	}
	return nil
}
