package devices

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/device/plugintest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestKillsAtAnyMomentLeakNoDevice kills the daemon while pods with devices come and go. No device is ever given
// to two pods, and after the last pod none is held.
func TestKillsAtAnyMomentLeakNoDevice(t *testing.T) {
	w := start(t, "")
	p := w.plug(&plugintest.Plugin{}, plugintest.Many(4)...)
	nodetest.Pull(t, w.Node, node.Busybox)
	ctx, stop := context.WithCancel(context.Background())
	var lives atomic.Int64
	var wg sync.WaitGroup
	defer func() {
		stop()
		wg.Wait()
	}()
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if w.life(ctx) {
					lives.Add(1)
				}
			}
		})
	}
	for range 10 {
		time.Sleep(time.Duration(50+rand.Intn(300)) * time.Millisecond) // so that pods are at any point of their lives
		if err := w.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := w.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		if err := p.Return(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		w.until("the plugin is back", func() bool {
			list := w.resource(gpu).GetDevices()
			return len(list) == 4 && list[0].GetHealthy()
		})
		pods := map[string]string{}
		for _, d := range w.resource(gpu).GetDevices() {
			for _, h := range d.GetHolders() {
				if other, held := pods[d.GetId()]; held && other != h.GetPodSandboxId() {
					t.Errorf("%s is held by two pods", d.GetId())
				}
				pods[d.GetId()] = h.GetPodSandboxId()
			}
		}
	}
	w.until("a pod has lived its whole life", func() bool { return lives.Load() > 0 })
	stop()
	wg.Wait()
	t.Logf("%d pods lived their whole life", lives.Load())
	if err := w.RemoveAll(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.wantHeld("dev-0 dev-1 dev-2 dev-3")
	if entries, _ := os.ReadDir(filepath.Join(w.Root, "devices")); len(entries) != 0 {
		t.Errorf("records are left: %v", entries)
	}
}

// life runs a pod whose container holds two devices, and removes it. What the kills cut off is left for the end.
func (w *world) life(ctx context.Context) bool {
	config := nodetest.PodConfig(w.Node, asks(ask("c", 2)))
	call, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	pod, err := w.Runtime.RunPodSandbox(call, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return false
	}
	container, err := w.Runtime.CreateContainer(call, &cri.CreateContainerRequest{
		PodSandboxId: pod.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: node.Busybox},
			Command: []string{"true"}, Linux: &cri.LinuxContainerConfig{},
		},
	})
	if err == nil {
		_, err = w.Runtime.StartContainer(call, &cri.StartContainerRequest{ContainerId: container.ContainerId})
	}
	if code := status.Code(err); code != codes.OK && code != codes.Unavailable && code != codes.Canceled &&
		code != codes.ResourceExhausted &&
		code != codes.FailedPrecondition { // the plugin has not returned, or the pod was there too early
		fmt.Println("unexpected:", err)
	}
	// A removal that the kill cuts off is made again: a pod that is there keeps its devices.
	again, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for removed := errors.New("not yet"); removed != nil && again.Err() == nil; time.Sleep(10 * time.Millisecond) {
		_, removed = w.Runtime.RemovePodSandbox(again, &cri.RemovePodSandboxRequest{PodSandboxId: pod.PodSandboxId})
	}
	return err == nil && again.Err() == nil
}
