package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/test/node"
	"berth/test/vm/wire"
)

// tags are the build tags of tests, as in the Makefile.
const tags = "seccomp"

// settings are the flags.
type settings struct {
	cache     string
	results   string
	packages  string
	suites    string
	only      string
	exec      string
	critest   string
	nodeFlags string // of test/nodeconformance
	size      size
	bootLimit time.Duration
	run, skip string
	driver    string
	lsm       string
	arch      string
	release   string
	limit     time.Duration
	patience  int
	verbose   bool
}

// session is one run: a guest, and what its suites need.
type session struct {
	settings
	root    string // of the module
	goroot  string // of the Go that builds it
	gocache string // its cache
	tests   string // directory for compiled tests, on the host
	guest   architecture
	machine *machine
}

func main() {
	// Emulator and file server are to end with the thread that has started them, which must therefore stay.
	runtime.LockOSThread()
	var s settings
	flag.StringVar(&s.cache, "cache", "", "directory for root images and results (default: berth/vm in the user's cache)")
	flag.StringVar(&s.results,
		"results", "", "directory for what tests, critest and the console say (default: results in the cache)")
	flag.StringVar(&s.packages, "packages", "", "Debian packages that the guest has beside its own, separated by spaces")
	flag.StringVar(&s.suites, "suites", "smoke,critest,tests", "what to run: "+strings.Join(suiteNames(), ", "))
	flag.StringVar(&s.only, "run-tests", "",
		"run the tests of these packages (./internal/volume, ./test/...) in place of suites, separated by commas")
	flag.StringVar(&s.exec, "exec", "", "run this shell command in the guest in place of suites")
	flag.StringVar(&s.critest, "critest-flags", "", "further flags of test/conformance, separated by spaces")
	flag.StringVar(&s.nodeFlags, "node-conformance-flags", "-smoke",
		"flags of test/nodeconformance, as words of a shell: -smoke, -focus 'Swap|MemoryQoS' -label-filter ''")
	flag.StringVar(&s.run, "run", "", "run only tests whose names match this regular expression")
	flag.StringVar(&s.skip, "skip", "", "do not run tests whose names match this regular expression")
	flag.StringVar(&s.driver,
		"cgroup-driver", "auto", "cgroup driver of the nodes that tests start: auto, cgroupfs or systemd")
	flag.StringVar(&s.lsm, "lsm", "apparmor", "security module of the guest: "+
		strings.Join(slices.Sorted(maps.Keys(securityModules)), " or "))
	flag.StringVar(&s.release, "release", "", "release of Debian in the guest, as trixie (default: the host's)")
	flag.StringVar(&s.arch, "arch", runtime.GOARCH, "architecture of the guest: amd64 or arm64. In one that is not the "+
		"host's, no Go is there, so only tests run that build nothing, such as those of the suite smoke")
	flag.IntVar(&s.size.processors, "cpus", 2, "processors of the guest")
	flag.IntVar(&s.size.memory, "memory", 4096, "memory of the guest in MiB")
	flag.DurationVar(&s.bootLimit, "boot-limit", 15*time.Minute, "longest time until the guest answers")
	flag.DurationVar(&s.limit, "limit", 60*time.Minute,
		"longest time of one package's tests, of critest, or of the command")
	flag.IntVar(&s.patience, "patience", 4,
		"how many times longer than usual tests wait in the guest; more where the machine is busy")
	flag.BoolVar(&s.verbose, "v", false, "show what tests print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := virtualMachine(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// virtualMachine boots a guest, runs what the settings name, and sums up.
func virtualMachine(ctx context.Context, settings settings) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("making the root image and sharing directories need root")
	}
	s := &session{settings: settings}
	suites, err := parseSuites(s.suites)
	if err != nil {
		return err
	}
	lsm, ok := securityModules[s.lsm]
	if !ok {
		return fmt.Errorf("unknown security module %q", s.lsm)
	}
	if s.guest, err = architectureNamed(s.arch); err != nil {
		return err
	}
	if s.root, err = node.ModuleRoot(); err != nil {
		return err
	}
	if s.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		s.cache = filepath.Join(dir, "berth", "vm")
	}
	if s.results == "" {
		s.results = filepath.Join(s.cache, "results")
	}
	if err := os.MkdirAll(s.results, 0o755); err != nil {
		return err
	}
	start := time.Now()
	if s.release == "" {
		if s.release, err = ownRelease(); err != nil {
			return err
		}
	}
	image, err := makeImage(ctx, filepath.Join(s.cache, "images"), s.release, strings.Fields(s.packages), s.guest, lsm)
	if err != nil {
		return fmt.Errorf("make the root image: %w", err)
	}
	fmt.Printf("root image: %v\n", elapsed(start))
	if err := s.start(ctx, image); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	defer func() { err = errors.Join(err, s.machine.stop()) }()
	if s.exec != "" {
		return s.shell(ctx, s.exec)
	}
	var results []*result
	if s.only != "" {
		if results, err = s.runWithPrograms(ctx, strings.Split(s.only, ",")); err != nil {
			return err
		}
	} else {
		for _, suite := range suites {
			more, err := suite.run(ctx, s)
			results = append(results, more...)
			if err != nil {
				return fmt.Errorf("suite %s: %w", suite.name, err)
			}
		}
	}
	return s.sum(results)
}

// start builds the agent and boots the guest.
func (s *session) start(ctx context.Context, image *image) error {
	agent, err := os.CreateTemp("", "berth-agent-")
	if err != nil {
		return err
	}
	agent.Close()
	defer os.Remove(agent.Name())
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w",
		"-o", agent.Name(), "./test/vm/guest")
	build.Dir = s.root
	build.Env = append(append(os.Environ(), "CGO_ENABLED=0"), s.guest.environment()...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	dirs := []string{s.root}
	for _, name := range []string{"GOROOT", "GOMODCACHE", "GOCACHE"} {
		out, err := exec.CommandContext(ctx, "go", "env", name).Output()
		if err != nil {
			return fmt.Errorf("go env %s: %w", name, err)
		}
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	s.goroot, s.gocache = dirs[1], dirs[3]
	if dir := s.conformanceCache(); exists(dir) {
		dirs = append(dirs, dir)
	}
	start := time.Now()
	s.machine, err = boot(ctx, image, agent.Name(), dirs, s.size, filepath.Join(s.results, "console.log"), s.bootLimit)
	if err != nil {
		return err
	}
	s.tests = filepath.Join(s.machine.dir, "share", "tests")
	if err := os.Mkdir(s.tests, 0o755); err != nil {
		return errors.Join(err, s.machine.stop())
	}
	fmt.Printf("boot: %v\n", elapsed(start))
	if err := s.guest.build(ctx, s.root, filepath.Join(s.machine.dir, "share", "bin")); err != nil {
		return errors.Join(err, s.machine.stop())
	}
	return nil
}

// conformanceCache is where test/conformance keeps tools and images, below the directories that the guest sees.
func (s *session) conformanceCache() string { return filepath.Join(s.cache, "conformance") }

// environment is what commands in the guest get beside the agent's own. The tests' Go works from the shared caches
// alone.
func (s *session) environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + filepath.Join(s.goroot, "bin"),
		"GOPROXY=off", "GOFLAGS=-buildvcs=false", "LC_ALL=C.UTF-8",
		node.EnvBinaries + "=" + filepath.Join(wire.Share, "bin"),
		node.EnvCgroupDriver + "=" + s.driver,
		node.EnvPatience + "=" + strconv.Itoa(s.patience),
		"BERTH_VM=1", "BERTH_TEST_SETS_CLOCK=1",
	}
}

// shell runs a command in the guest and shows what it prints.
func (s *session) shell(ctx context.Context, line string) error {
	code, err := s.machine.run(ctx, wire.Command{
		Args: []string{"sh", "-c", line}, Dir: s.root, Env: s.environment(), Limit: s.limit,
	}, os.Stdout)
	if err == nil && code != 0 {
		err = fmt.Errorf("the command ended with %d", code)
	}
	return err
}

// sum says what came of all, and fails where anything did.
func (s *session) sum(results []*result) error {
	failed := 0
	for _, r := range results {
		if !r.ok() {
			failed++
		}
	}
	fmt.Printf("\n%d of %d passed; logs: %s\n", len(results)-failed, len(results), s.results)
	if failed > 0 {
		for _, r := range results {
			if !r.ok() {
				fmt.Println(r)
			}
		}
		return fmt.Errorf("%d failed", failed)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func elapsed(start time.Time) time.Duration { return time.Since(start).Round(100 * time.Millisecond) }

// suite is something to run in the guest.
type suite struct {
	name string
	run  func(context.Context, *session) ([]*result, error)
}

// allSuites in the order in which they are worth running.
var allSuites = []suite{
	{"smoke", func(ctx context.Context, s *session) ([]*result, error) {
		return s.runPackages(ctx, []string{"./test/vm/smoke"}, wire.Command{})
	}},
	{"selinux", func(ctx context.Context, s *session) ([]*result, error) {
		if s.lsm != "selinux" {
			return nil, errors.New("it is for a guest with -lsm selinux")
		}
		return s.runPackages(ctx, []string{"./test/vm/selinux"}, wire.Command{})
	}},
	{"units", func(ctx context.Context, s *session) ([]*result, error) {
		return s.runPackages(ctx, []string{"./test/vm/units"}, wire.Command{})
	}},
	{"packages", runDebs},
	{"critest", runCritest},
	{"kubelet", runKubelet},
	{"node-conformance", runNodeConformance},
	{"tests", func(ctx context.Context, s *session) ([]*result, error) {
		return s.runWithPrograms(ctx, []string{"./..."})
	}},
}

func suiteNames() []string {
	var names []string
	for _, s := range allSuites {
		names = append(names, s.name)
	}
	return names
}

func parseSuites(list string) ([]suite, error) {
	var suites []suite
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(allSuites, func(s suite) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown suite %q: %s", name, strings.Join(suiteNames(), ", "))
		}
		suites = append(suites, allSuites[i])
	}
	return suites, nil
}

// runPackages runs the tests of packages, one package after the other, with the further arguments and variables
// of a command.
func (s *session) runPackages(ctx context.Context, patterns []string, with wire.Command) ([]*result, error) {
	packages, err := testPackages(ctx, s.root, patterns)
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("no package of %s has tests", strings.Join(patterns, " "))
	}
	var results []*result
	for _, p := range packages {
		r := s.runTests(ctx, p, with)
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		results = append(results, r)
		fmt.Println(r)
	}
	return results, nil
}
