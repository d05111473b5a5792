package kubelet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// EnvRun asks for the suite: it is too long for every `go test ./...`.
const EnvRun = "BERTH_KUBELET"

// prepare fills the cache for a machine that cannot build what the tests need: the virtual machine.
var prepare = flag.Bool("prepare", false,
	"build the kubelet and Kubernetes' sample of a device plugin, and run no test")

// binary is the kubelet's path.
var binary string

// common is the node and kubelet of all tests that need nothing special.
var common struct {
	sync.Once
	node    *node.Node
	kubelet *kubelet
	err     error
}

func TestMain(m *testing.M) {
	flag.Parse()
	if *prepare {
		_, kubeletErr := kubernetes.Kubelet.Build(context.Background())
		_, sampleErr := kubernetes.SampleDevicePlugin.Build(context.Background())
		if err := errors.Join(kubeletErr, sampleErr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(EnvRun) == "" {
		fmt.Printf("skipped: `make kubelet` runs this suite (%s=1)\n", EnvRun)
		return
	}
	if os.Geteuid() != 0 {
		fmt.Println("skipped: a node and a kubelet need root")
		return
	}
	var err error
	if binary, err = kubernetes.Kubelet.Build(context.Background()); err != nil {
		fmt.Printf("skipped: no kubelet can be built here: %v\n", err)
		return
	}
	fmt.Printf("kubelet: %s\n", binary)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	made, err := makeCommon()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if common.kubelet != nil {
		fail(common.kubelet.end())
	}
	if common.node != nil {
		fail(endNode(common.node))
	}
	fail(node.Cleanup())
	for _, dir := range made {
		fail(os.Remove(dir))
	}
	return code
}

// makeCommon makes the directories that every kubelet has its own mounts on, and returns those that were not there.
func makeCommon() (made []string, err error) {
	for _, dir := range ownDirs {
		err := os.Mkdir(dir, 0o755)
		switch {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, os.ErrExist):
			return made, err
		}
	}
	return made, nil
}

// shared is the kubelet of tests that need nothing special.
func shared(t *testing.T) *kubelet {
	t.Helper()
	common.Do(func() {
		if common.node, common.err = node.Start(context.Background(), node.Options{}); common.err == nil {
			common.kubelet, common.err = startKubelet(context.Background(), common.node, options{
				gates:  map[string]bool{"ContainerStopSignals": true},
				config: map[string]any{"containerLogMaxSize": "256Ki"},
			})
		}
	})
	if common.err != nil {
		t.Fatalf("start node and kubelet: %v", common.err)
	}
	return common.kubelet
}

// own is a node and a kubelet for one test. Both end with it, which fails if a trace of either is left.
func own(t *testing.T, no node.Options, o options) *kubelet {
	t.Helper()
	return ownOf(t, node.Start, no, o)
}

// ownOf is own for a node that start makes.
func ownOf(t *testing.T, start func(context.Context, node.Options) (*node.Node, error), no node.Options,
	o options) *kubelet {
	t.Helper()
	n, err := start(nodetest.Context(t), no)
	if err != nil {
		t.Fatalf("start a node: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon and keeper said last:\n%s", n.LogTail())
		}
		if err := endNode(n); err != nil {
			t.Error(err)
		}
	})
	k, err := startKubelet(nodetest.Context(t), n, o)
	if err != nil {
		t.Fatalf("start a kubelet: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kubelet said last:\n%s", k.logTail())
		}
		if err := k.end(); err != nil {
			t.Error(err)
		}
	})
	return k
}
