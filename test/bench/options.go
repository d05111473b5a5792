package main

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// options are the sizes of a run, a field for each flag.
type options struct {
	running    running
	berth      bool
	base       string
	containerd bool
	debian     bool
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
	afterwards time.Duration
	idle       time.Duration
	span       time.Duration
	unconfined bool
	cni        bool
	crowds     crowds
	among      int
	loading    time.Duration
	json       string
	svg        string
	growth     string
	samples    string
}

// running are peers that run already: NAME=unix:///path.
type running []string

func (a *running) String() string { return strings.Join(*a, " ") }

// ownNames are the names of peers that are started here.
var ownNames = []string{"berth", "base", cniPeer, "containerd", "debian-containerd"}

func (a *running) Set(value string) error {
	name, address, _ := strings.Cut(value, "=")
	switch path, ok := strings.CutPrefix(address, "unix://"); {
	case !ok || !strings.HasPrefix(path, "/"):
		return errors.New("want NAME=unix:///path, with the absolute path of a socket")
	case !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`).MatchString(name):
		return fmt.Errorf("the name %q must be letters, digits, dots, dashes and underscores", name)
	case slices.Contains(ownNames, name):
		return fmt.Errorf("the name %s is that of a private runtime", name)
	}
	for _, other := range *a {
		if taken, _, _ := strings.Cut(other, "="); taken == name {
			return fmt.Errorf("there is a peer %s already", name)
		}
	}
	*a = append(*a, value)
	return nil
}

// flags declares the flags.
func (o *options) flags() {
	flag.Var(&o.running, "peer", "a runtime that runs already, as `NAME=unix:///path`; may be repeated")
	flag.BoolVar(&o.berth, "berth", true, "start a private Berth")
	flag.StringVar(&o.base,
		"base", "", "start one more private Berth, with the programs of this `directory`: a peer named base")
	flag.BoolVar(&o.containerd, "containerd", false,
		"start a private containerd 2 with a runc 1.5, which are built once (Debian: containernetworking-plugins)")
	flag.BoolVar(&o.debian, "debian-containerd", false,
		"start a private containerd of Debian's (Debian: containerd, runc, containernetworking-plugins)")
	flag.StringVar(&o.config, "config", "", "further lines of the private Berth's config.toml, before its tables")
	flag.StringVar(&o.image,
		"image", "", "the busybox image that runtimes of -peer use; empty: one from a registry on loopback")
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
	flag.DurationVar(&o.afterwards, "afterwards", time.Second,
		"how long a runtime may work on pods that it has removed and execs that it has answered, a part of what they cost")
	flag.DurationVar(&o.settle, "settle", 5*time.Second, "how long a runtime is left alone before its memory is read")
	flag.DurationVar(&o.idle, "idle", 10*time.Second, "how long idle CPU is measured")
	flag.DurationVar(&o.span, "span", 2*time.Second, "how long a turn of probes with 8 in flight takes")
	flag.BoolVar(&o.unconfined, "unconfined", false, "give containers no seccomp profile, in place of the default one")
	flag.BoolVar(&o.cni, "cni", false,
		"start one more private Berth, with the CNI plugins that containerd has (Debian: containernetworking-plugins)")
	flag.Var(&o.crowds, "crowds", "`numbers` of pods, such as 0,500,1000, beside each of which further pods, execs and "+
		"lists are measured, memory is read and the daemon is killed; empty: leave those rows out")
	flag.IntVar(&o.among, "among", 20, "pods that are started one after another beside each number of -crowds")
	flag.DurationVar(&o.loading, "loading", 5*time.Minute,
		"how long pods are started for each number of -crowds; a slower runtime has fewer, and the report says so")
	flag.StringVar(&o.growth, "growth", "", "a `file` for a chart of how rows grow with the numbers of -crowds")
	flag.StringVar(&o.svg, "svg", "", "a `file` for a chart of how the first two peers compare")
	flag.StringVar(&o.samples,
		"samples", "", "a `file` to which every sample is appended in the format of Go's benchmarks")
	flag.StringVar(&o.json, "json", "", "a `file` for the result as JSON; - is stdout, in place of the table")
}

// check refuses sizes with which nothing can be measured.
func (o *options) check() error {
	for name, value := range map[string]int{"rounds": o.rounds, "turns": o.turns, "lives": o.lives, "execs": o.execs,
		"among": o.among} {
		if value < 1 {
			return fmt.Errorf("-%s must be at least 1", name)
		}
	}
	if o.layerRate < 1 {
		return errors.New("-layer-rate must be at least 1")
	}
	if o.afterwards <= 0 {
		return errors.New("-afterwards must be longer than 0")
	}
	if o.lineBytes < 2 {
		return errors.New("-line must be at least 2")
	}
	if o.growth != "" && len(o.crowds) < 2 {
		return errors.New("-growth draws how rows grow, and needs at least two numbers in -crowds")
	}
	return nil
}
