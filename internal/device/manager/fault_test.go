package manager

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/containerd/errdefs"

	"berth/internal/device/plugintest"
)

func TestAPluginThatDiesInTheMiddleOfAnAllocation(t *testing.T) {
	m := start(t)
	reached := make(chan struct{})
	p := plug(t, m, &plugintest.Plugin{OnAllocate: func(ctx context.Context,
		_ *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		close(reached)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, plugintest.Devices("a")...)
	go func() {
		<-reached
		p.Stop()
	}()
	_, err := m.Allocate(context.Background(), want("p", "c", ask("c", 1)))
	if err == nil || !strings.Contains(err.Error(), "device plugin of vendor.com/gpu: Allocate") {
		t.Errorf("error %v", err)
	}
	eventually(t, "its device is free and unhealthy", func() bool { return slices.Equal(shown(m, gpu), []string{"a-"}) })
	plug(t, m, &plugintest.Plugin{Endpoint: "next.sock"}, plugintest.Devices("a")...)
	allocate(t, m, want("p", "c", ask("c", 1)))
}

func TestAPluginThatSendsGarbage(t *testing.T) {
	m := start(t, func(c *Config) { c.Timeout = 5 * time.Second })
	// Not gRPC at all.
	l, err := net.Listen("unix", filepath.Join(m.cfg.Dir, "noise.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, strings.Repeat("\x00\xff garbage \n", 10000))
				c.Close()
			}()
		}
	}()
	err = plugintest.Register(context.Background(), filepath.Join(m.cfg.Dir, SocketName),
		&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "noise.sock", ResourceName: gpu})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is given up", func() bool { return len(m.List()) == 1 && !m.List()[0].Connected })

	// gRPC, with devices that cannot be.
	p := &plugintest.Plugin{Dir: m.cfg.Dir, Endpoint: "p.sock", Resource: gpu}
	list := append(plugintest.Devices("", "a", "a", strings.Repeat("x", 2000), "nul\x00"), nil)
	list[1].Health = "Splendid"
	if err := p.Start(list...); err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if err := p.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what can be is there", func() bool { return slices.Equal(shown(m, gpu), []string{"a-", "nul\x00"}) })
	if problem := m.List()[0].Problem; !strings.Contains(problem, "left out") {
		t.Errorf("problem %q", problem)
	}
	p.Send(plugintest.Devices("a")...)
	eventually(t, "a good list heals it", func() bool { return lives(m, gpu) })
}

func TestTenThousandDevices(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Many(10000)...)
	for i := range 50 {
		allocate(t, m, want(fmt.Sprint("p", i), "c", ask("c", 100)))
	}
	held := 0
	for _, d := range m.List()[0].Devices {
		if len(d.Holders) > 1 {
			t.Fatalf("%s is held by %v", d.ID, d.Holders)
		}
		held += len(d.Holders)
	}
	if held != 5000 {
		t.Errorf("%d are held", held)
	}
	if _, err := m.Allocate(context.Background(), want("more", "c", ask("c", 5001))); !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
	allocate(t, m, want("all", "c", ask("c", 5000)))
}

func TestHealthThatChangesAHundredTimesASecond(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Many(100)...)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				p.Send(plugintest.Many(100)...)
				return
			case <-tick.C:
				list := plugintest.Many(100)
				for j := i % 3; j < 100; j += 3 {
					list[j].Health = pluginapi.Unhealthy
				}
				p.Send(list...)
			}
		}
	}()
	for i := range 200 {
		pod := fmt.Sprint("p", i)
		edits, err := m.Allocate(context.Background(), want(pod, "c", ask("c", 10)))
		if err != nil || len(edits) != 1 {
			t.Fatalf("%v, %v", edits, err)
		}
		m.FreePod(pod)
	}
	close(stop)
	<-done
	eventually(t, "the last word counts", func() bool {
		return !slices.ContainsFunc(shown(m, gpu), func(s string) bool { return strings.HasSuffix(s, "-") })
	})
}
