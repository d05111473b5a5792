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
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// churn is pods that come and go, a few at a time, while something else fails.
type churn struct {
	n      *node.Node
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	pods   atomic.Int64 // that lived their whole life
	mu     sync.Mutex   // guards errors
	errors []error
	// orphans says that keepers are killed: what ends meanwhile has no exit code where the kernel keeps none.
	orphans atomic.Bool
}

func startChurn(t *testing.T, n *node.Node, workers int) *churn {
	t.Helper()
	nodetest.Pull(t, n, node.Busybox)
	c := &churn{n: n}
	c.ctx, c.stop = context.WithCancel(context.Background())
	for i := range workers {
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			for c.ctx.Err() == nil {
				if err := c.pod(i); err != nil {
					c.mu.Lock()
					c.errors = append(c.errors, err)
					c.mu.Unlock()
					time.Sleep(50 * time.Millisecond)
				}
			}
		}()
	}
	return c
}

// finish lets the pods that are on their way end, and reports what went wrong beyond the kills.
func (c *churn) finish(t *testing.T) {
	t.Helper()
	c.stop()
	c.wg.Wait()
	t.Logf("%d pods lived their whole life", c.pods.Load())
	if c.pods.Load() == 0 {
		t.Error("no pod lived its whole life")
	}
	for i, err := range c.errors {
		if i == 5 {
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

// pod is one life. Nothing that the node has acknowledged may be lost; a call that the kill cut off may have happened or not.
func (c *churn) pod(worker int) error {
	runtime := c.n.Runtime
	config := nodetest.PodConfig(c.n)
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
	defer cancel()
	pod, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if away(err) {
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	if err != nil {
		return fmt.Errorf("run pod: %w", err)
	}
	id := pod.PodSandboxId
	if err := again("status of a pod that runs", func(ctx context.Context) error {
		_, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
		return err
	}); err != nil {
		return err
	}
	code := int32(worker + 3)
	container, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: id, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: node.Busybox},
			Command: []string{"sh", "-c", fmt.Sprintf("echo begin; sleep 0.1; echo end; exit %d", code)}, LogPath: "c.log",
			Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err == nil {
		_, err = runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container.ContainerId})
	}
	if err != nil && !away(err) {
		return fmt.Errorf("create and start: %w", err)
	}
	started := err == nil
	if started {
		var s *cri.ContainerStatus
		for deadline := time.Now().Add(node.Patience(time.Minute)); ; {
			if err := again("status of a container that runs", func(ctx context.Context) error {
				r, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container.ContainerId})
				s = r.GetStatus()
				return err
			}); err != nil {
				return err
			}
			if s.State == cri.ContainerState_CONTAINER_EXITED {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("container %s is %v after a minute, and should have ended after 0.1 s", s.Id, s.State)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if s.ExitCode != code && !(c.orphans.Load() && node.OrphanEnded(s, code)) {
			return fmt.Errorf("container %s ended with %d (%s: %s), want %d", s.Id, s.ExitCode, s.Reason, s.Message, code)
		}
	}
	if worker%2 == 0 {
		if err := again("stop pod", func(ctx context.Context) error {
			_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
			return err
		}); err != nil {
			return err
		}
	}
	if err := again("remove pod", func(ctx context.Context) error {
		_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	}); err != nil {
		return err
	}
	if started {
		c.pods.Add(1)
	}
	return nil
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
