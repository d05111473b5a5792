package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/test/conformance/images"
	"berth/test/node"
)

// EnvRun asks for the suite: it is too long for every `go test ./...`.
const EnvRun = "BERTH_CLUSTER"

var (
	keep    = flag.Bool("keep", false, "run no test: keep the cluster up until an interrupt, for a person to try")
	netKind = flag.String("network", "mixed",
		"what connects pods: bridge (Berth's own), cni (Debian's plugins), or mixed (node 2 has CNI)")
)

// shared is the cluster of all tests.
var shared *cluster

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(EnvRun) == "" {
		fmt.Printf("skipped: `make cluster` runs this suite (%s=1)\n", EnvRun)
		return
	}
	if os.Geteuid() != 0 {
		fmt.Println("skipped: a cluster needs root")
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	// An interrupt ends the cluster in order.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cni, err := network(*netKind)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var built images.Images
	var cache string
	if *conformance {
		if cache, err = os.UserCacheDir(); err == nil {
			cache = filepath.Join(cache, "berth", "conformance")
			built, err = prepareConformance(ctx, cache)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	began := time.Now()
	c, err := newCluster(ctx, cni)
	defer func() {
		if c != nil {
			err = errors.Join(err, c.end())
		}
		if err = errors.Join(err, node.Cleanup()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if err != nil {
		return 1
	}
	fmt.Printf("the cluster is up after %v\n", time.Since(began).Round(time.Second))
	if *keep {
		fmt.Printf("\n    export KUBECONFIG=%s\n    %s get nodes -o wide\n\nAn interrupt (Ctrl-C) ends the cluster.\n",
			c.admin, c.kubectlBinary)
		<-ctx.Done()
		return 0
	}
	if *conformance {
		if err = c.conform(ctx, built, cache); err != nil {
			return 1
		}
		return 0
	}
	shared = c
	var over atomic.Bool
	go func() {
		<-ctx.Done()
		if over.Load() {
			return
		}
		// Tests that wait for pods would wait on: the cluster goes first, and they with this process.
		fmt.Fprintln(os.Stderr, "interrupted")
		if err := errors.Join(c.end(), node.Cleanup()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}()
	defer over.Store(true)
	return m.Run()
}
