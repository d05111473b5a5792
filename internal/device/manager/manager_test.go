package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/device"
	"berth/internal/device/plugintest"
	"berth/internal/model"
)

const gpu = "vendor.com/gpu"

// start is a manager that serves, with a directory of its own.
func start(t *testing.T, edits ...func(*Config)) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := Config{Dir: dir, Root: t.TempDir(), Timeout: 20 * time.Second, Grace: time.Minute,
		Log: slog.New(slog.DiscardHandler)}
	for _, edit := range edits {
		edit(&cfg)
	}
	cfg.Server = grpc.NewServer(grpc.UnaryInterceptor(coded))
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// coded gives errors the few codes that matter here; the daemon's server does so for all.
func coded(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	out, err := handler(ctx, req)
	switch {
	case errdefs.IsInvalidArgument(err):
		err = status.Error(codes.InvalidArgument, err.Error())
	case errdefs.IsAlreadyExists(err):
		err = status.Error(codes.AlreadyExists, err.Error())
	}
	return out, err
}

func plug(t *testing.T, m *Manager, p *plugintest.Plugin, devices ...*pluginapi.Device) *plugintest.Plugin {
	t.Helper()
	p.Dir = m.cfg.Dir
	if p.Resource == "" {
		p.Resource = gpu
	}
	if p.Endpoint == "" {
		p.Endpoint = "p.sock"
	}
	if err := p.Start(devices...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := p.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its devices are known", func() bool {
		return len(shown(m, p.Resource)) == len(devices) && lives(m, p.Resource)
	})
	return p
}

func lives(m *Manager, name string) bool {
	for _, r := range m.List() {
		if r.Name == name {
			return r.Connected && r.Problem == "" && (len(r.Devices) == 0 ||
				slices.ContainsFunc(r.Devices, func(d model.DeviceStatus) bool { return d.Healthy }))
		}
	}
	return false
}

// shown are the devices of a resource as text: ID, - if it is unhealthy, and the containers that hold it.
func shown(m *Manager, name string) []string {
	var out []string
	for _, r := range m.List() {
		if r.Name != name {
			continue
		}
		for _, d := range r.Devices {
			text := d.ID
			if !d.Healthy {
				text += "-"
			}
			for _, h := range d.Holders {
				text += " " + h.Pod + "/" + h.Container
			}
			out = append(out, text)
		}
	}
	return out
}

func eventually(t *testing.T, claim string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", claim)
		}
	}
}

// want asks for devices of gpu for a container of a pod.
func want(pod, container string, asks ...device.Ask) Request {
	return Request{SandboxID: pod, Namespace: "test", Pod: pod, Container: container,
		ContainerID: pod + "-" + container + "-id", Asks: asks}
}

func ask(container string, n int) device.Ask {
	return device.Ask{Container: container, Limits: map[string]int{gpu: n}}
}

func wantShown(t *testing.T, m *Manager, list ...string) {
	t.Helper()
	if got := shown(m, gpu); !slices.Equal(got, list) {
		t.Errorf("got %q, want %q", got, list)
	}
}

func allocate(t *testing.T, m *Manager, req Request) []model.Edits {
	t.Helper()
	edits, err := m.Allocate(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return edits
}

func TestARegistrationThatCannotBeIsRefused(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{Endpoint: "live.sock", Resource: "vendor.com/taken"}, plugintest.Devices("a")...)
	socket := filepath.Join(m.cfg.Dir, SocketName)
	for _, c := range []struct {
		claim string
		req   *pluginapi.RegisterRequest
		says  string
		code  codes.Code
	}{
		{"another version", &pluginapi.RegisterRequest{Version: "v1alpha", Endpoint: "x.sock", ResourceName: gpu},
			`"v1alpha" is not v1beta1`, codes.InvalidArgument},
		{"no domain", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "x.sock", ResourceName: "gpu"},
			"domain", codes.InvalidArgument},
		{"no name", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "x.sock", ResourceName: "a b/c"},
			"qualified", codes.InvalidArgument},
		{"above", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "../x.sock", ResourceName: gpu},
			"../x.sock", codes.InvalidArgument},
		{"absolute", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "/x.sock", ResourceName: gpu},
			"/x.sock", codes.InvalidArgument},
		{"none", &pluginapi.RegisterRequest{Version: "v1beta1", ResourceName: gpu}, "endpoint", codes.InvalidArgument},
		{"the manager's own", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "kubelet.sock", ResourceName: gpu},
			"itself", codes.InvalidArgument},
		{"a taken name", &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "x.sock", ResourceName: "vendor.com/taken"},
			"live.sock, which lives", codes.AlreadyExists},
	} {
		err := plugintest.Register(context.Background(), socket, c.req)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	if len(m.List()) != 1 {
		t.Errorf("a refused one is listed: %v", m.List())
	}
}

func TestALinkOutOfTheDirectoryIsNotFollowed(t *testing.T) {
	m := start(t, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	outside := &plugintest.Plugin{Dir: t.TempDir(), Endpoint: "p.sock", Resource: gpu}
	if err := outside.Start(plugintest.Devices("a")...); err != nil {
		t.Fatal(err)
	}
	defer outside.Stop()
	if err := os.Symlink(filepath.Join(outside.Dir, "p.sock"), filepath.Join(m.cfg.Dir, "link.sock")); err != nil {
		t.Fatal(err)
	}
	err := plugintest.Register(context.Background(), filepath.Join(m.cfg.Dir, SocketName),
		&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "link.sock", ResourceName: gpu})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is given up", func() bool { return len(m.List()) == 1 && !m.List()[0].Connected })
	if n := outside.Calls("GetDevicePluginOptions"); n != 0 {
		t.Errorf("the plugin outside was called %d times", n)
	}
}

func TestAPluginThatServesOnlyOnceItIsRegistered(t *testing.T) {
	m := start(t)
	p := &plugintest.Plugin{Dir: m.cfg.Dir, Endpoint: "late.sock", Resource: gpu}
	if err := p.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(plugintest.Devices("a")...); err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	eventually(t, "its device is there", func() bool { return slices.Equal(shown(m, gpu), []string{"a"}) })
}

func TestHealthAndInventoryFollowThePlugin(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	bad := plugintest.Devices("b", "c")
	bad[0].Health = pluginapi.Unhealthy
	p.Send(bad...)
	eventually(t, "the new list is there", func() bool { return slices.Equal(shown(m, gpu), []string{"b-", "c"}) })
	if _, err := m.Allocate(context.Background(), want("p", "c", ask("c", 2))); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "1 are unhealthy") {
		t.Errorf("two devices, one of them unhealthy: %v", err)
	}
	topology := plugintest.Devices("d")
	topology[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}, {ID: 1}, {ID: 0}}}
	p.Send(topology...)
	eventually(t, "NUMA nodes are known", func() bool {
		list := m.List()[0].Devices
		return len(list) == 1 && slices.Equal(list[0].NUMA, []int64{1, 0})
	})
}

func TestAPluginThatGoesAwayHasTimeToReturn(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	allocate(t, m, want("p", "c", ask("c", 1)))
	p.Stop()
	eventually(t, "its devices are unhealthy", func() bool {
		return slices.Equal(shown(m, gpu), []string{"a- p/c", "b-"})
	})
	if problem := m.List()[0].Problem; !strings.Contains(problem, "went away") {
		t.Errorf("problem %q", problem)
	}
	if _, err := m.Allocate(context.Background(), want("q", "c", ask("c", 1))); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a device of a plugin that is away: %v", err)
	}
	// It returns under another name, as after a restart.
	plug(t, m, &plugintest.Plugin{Endpoint: "p2.sock"}, plugintest.Devices("a", "b")...)
	wantShown(t, m, "a p/c", "b")
	allocate(t, m, want("q", "c", ask("c", 1)))
	wantShown(t, m, "a p/c", "b q/c")
}

func TestAPluginThatDoesNotReturnIsForgotten(t *testing.T) {
	m := start(t, func(c *Config) { c.Grace = 50 * time.Millisecond })
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	allocate(t, m, want("p", "c", ask("c", 1)))
	p.Stop()
	eventually(t, "only what is held is left", func() bool { return slices.Equal(shown(m, gpu), []string{"a- p/c"}) })
	m.FreePod("p")
	if len(m.List()) != 0 {
		t.Errorf("left: %v", m.List())
	}
	if Grace != 5*time.Minute {
		t.Errorf("a plugin has %v", Grace)
	}
}

func TestAPluginThatRegistersAgainTakesItsPlaceOver(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a")...)
	p.Stop()
	next := &plugintest.Plugin{Dir: m.cfg.Dir, Endpoint: p.Endpoint, Resource: gpu}
	if err := next.Start(plugintest.Devices("b")...); err != nil {
		t.Fatal(err)
	}
	defer next.Stop()
	if err := next.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new one's device is there", func() bool { return slices.Equal(shown(m, gpu), []string{"b"}) })
	// And without ever having gone away.
	if err := next.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is asked again", func() bool { return next.Calls("ListAndWatch") == 2 })
	eventually(t, "and healthy", func() bool { return slices.Equal(shown(m, gpu), []string{"b"}) })
}

// TestAPluginThatWatchesItsOwnSocketRegistersAgain: the removal of its socket is all by which such a plugin learns that
// the manager has restarted, as a kubelet removes it. It was seen to stay away for ever.
func TestAPluginThatWatchesItsOwnSocketRegistersAgain(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	if err := p.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	allocate(t, m, want("p", "c", ask("c", 1)))
	// What is no socket, and what is in a directory, is not the manager's to remove.
	keep := []string{"kubelet_internal_checkpoint", "of-a-vendor/x.sock"}
	if err := os.WriteFile(filepath.Join(m.cfg.Dir, keep[0]), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inner := &plugintest.Plugin{Dir: filepath.Join(m.cfg.Dir, "of-a-vendor"), Endpoint: "x.sock"}
	if err := os.Mkdir(inner.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := inner.Start(); err != nil {
		t.Fatal(err)
	}
	defer inner.Stop()

	second, err := New(Config{Dir: m.cfg.Dir, Root: t.TempDir(), Server: grpc.NewServer(), Log: m.log})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Serve(); err == nil || !lives(m, gpu) {
		t.Fatalf("a manager beside one that lives: %v, %v", err, m.List())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := New(Config{Dir: m.cfg.Dir, Root: m.cfg.Root, Server: grpc.NewServer(), Log: m.log, Grace: time.Minute,
		Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	next.Reconcile(func(string) bool { return true }, func(string) bool { return true })
	if err := next.Serve(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the plugin is back", func() bool { return slices.Equal(shown(next, gpu), []string{"a p/c", "b"}) })
	for _, name := range keep {
		if _, err := os.Stat(filepath.Join(m.cfg.Dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestTheSocketIsPutBack(t *testing.T) {
	m := start(t)
	socket := filepath.Join(m.cfg.Dir, SocketName)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is back", func() bool { _, err := os.Stat(socket); return err == nil })
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a")...)
	if err := os.RemoveAll(m.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is back with its directory", func() bool { _, err := os.Stat(socket); return err == nil })
}

func TestASocketThatSomebodyAnswersOnIsLeft(t *testing.T) {
	m := start(t)
	other, err := New(Config{Dir: m.cfg.Dir, Root: t.TempDir(), Server: grpc.NewServer(),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Serve(); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("a second manager: %v", err)
	}
}

func TestTheAnswersPartsReachTheContainer(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{OnAllocate: func(context.Context,
		*pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
			Envs:        map[string]string{"B": "2", "A": "1"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/in", HostPath: "/out", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/y", Permissions: "r"}},
			Annotations: map[string]string{"k": "v"},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "v.com/c=d"}},
		}}}, nil
	}}, plugintest.Devices("a")...)
	got := allocate(t, m, want("p", "c", ask("c", 1)))
	wanted := fmt.Sprintf("%+v", []model.Edits{{
		Source: "device plugin of vendor.com/gpu", Env: []model.EnvVar{{Key: "A", Value: "1"}, {Key: "B", Value: "2"}},
		Mounts:      []model.Mount{{ContainerPath: "/in", HostPath: "/out", Readonly: true}},
		Devices:     []model.Device{{ContainerPath: "/dev/x", HostPath: "/dev/y", Permissions: "r"}},
		Annotations: map[string]string{"k": "v"}, CDIDevices: []string{"v.com/c=d"},
	}})
	if fmt.Sprintf("%+v", got) != wanted {
		t.Errorf("got %+v\nwant %s", got, wanted)
	}
}

func TestTwoPodsRaceForTheLastDevice(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a")...)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = m.Allocate(context.Background(), want(fmt.Sprint("p", i), "c", ask("c", 1))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errdefs.IsResourceExhausted(err) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d pods have the one device", won)
	}
}

func TestOneAllocateForAPodsContainers(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{OnAllocate: func(_ context.Context,
		req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		out := &pluginapi.AllocateResponse{}
		for _, c := range req.ContainerRequests {
			out.ContainerResponses = append(out.ContainerResponses,
				&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"IDS": strings.Join(c.DevicesIds, ",")}})
		}
		return out, nil
	}}, plugintest.Devices("a", "b", "c", "d")...)
	init := device.Ask{Container: "init", Kind: device.KindInit, Limits: map[string]int{gpu: 2}}
	side := device.Ask{Container: "side", Kind: device.KindSidecar, Limits: map[string]int{gpu: 1}}
	asks := []device.Ask{init, side, ask("one", 2), ask("two", 1)}
	// Four are enough: the init container's go to those after it.
	if edits := allocate(t, m, want("p", "init", asks...)); edits[0].Env[0].Value != "a,b" {
		t.Errorf("init: %v", edits)
	}
	if got := plugintest.Allocated(p.Last("Allocate")); !slices.Equal(got, []string{"a,b", "a", "b,c", "d"}) {
		t.Errorf("asked for %q", got)
	}
	if edits := allocate(t, m, want("p", "two", asks...)); edits[0].Env[0].Value != "d" {
		t.Errorf("two: %v", edits)
	}
	if edits := allocate(t, m, want("p", "other", asks...)); edits != nil {
		t.Errorf("one that asks for nothing: %v", edits)
	}
	if n := p.Calls("Allocate"); n != 1 {
		t.Errorf("%d calls", n)
	}
	wantShown(t, m, "a p/init p/side", "b p/init p/one", "c p/one", "d p/two")
	// A pod that cannot have all has none.
	m.FreePod("p")
	if _, err := m.Allocate(context.Background(),
		want("q", "one", ask("one", 2), ask("two", 3))); !errdefs.IsResourceExhausted(err) {
		t.Errorf("five of four: %v", err)
	}
	wantShown(t, m, "a", "b", "c", "d")
}

func TestAContainerHasItsDevicesBackAfterARestart(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b", "c")...)
	allocate(t, m, want("other", "c", ask("c", 1)))
	allocate(t, m, want("p", "c", ask("c", 1)))
	m.FreePod("other")
	wantShown(t, m, "a", "b p/c", "c")
	again := want("p", "c", ask("c", 1))
	// The first has ended and is still there.
	again.ContainerID, again.Ended = "second", []string{"p-c-id"}
	allocate(t, m, again)
	wantShown(t, m, "a", "b p/c", "c")
	m.Free("p-c-id") // the first is removed
	wantShown(t, m, "a", "b p/c", "c")
	m.Free("second")
	wantShown(t, m, "a", "b", "c")
	again.ContainerID = "third"
	allocate(t, m, again)
	wantShown(t, m, "a", "b p/c", "c")
	// Unhealthy, it is another.
	m.Free("third")
	list := plugintest.Devices("a", "b", "c")
	list[1].Health = pluginapi.Unhealthy
	p.Send(list...)
	eventually(t, "b is unhealthy", func() bool { return slices.Equal(shown(m, gpu), []string{"a", "b-", "c"}) })
	again.ContainerID = "fourth"
	allocate(t, m, again)
	wantShown(t, m, "a p/c", "b-", "c")
}

func TestThePluginsPreferenceIsFollowedAndChecked(t *testing.T) {
	m := start(t)
	var answer [][]string
	p := plug(t, m, &plugintest.Plugin{
		Options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true},
		OnPreferred: func(context.Context,
			*pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
			out := &pluginapi.PreferredAllocationResponse{}
			for _, ids := range answer {
				out.ContainerResponses = append(out.ContainerResponses,
					&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
			}
			return out, nil
		},
	}, plugintest.Devices("a", "b", "c", "d")...)
	answer = [][]string{{"d", "b"}}
	allocate(t, m, want("p", "c", ask("c", 2)))
	wantShown(t, m, "a", "b p/c", "c", "d p/c")
	// What it had before must be included.
	m.Free("p-c-id")
	again := want("p", "c", ask("c", 3))
	again.ContainerID = "second"
	answer = [][]string{{"d", "b", "a"}}
	allocate(t, m, again)
	r := p.Last("GetPreferredAllocation").(*pluginapi.PreferredAllocationRequest).ContainerRequests[0]
	if !slices.Equal(r.MustIncludeDeviceIDs, []string{"d", "b"}) || len(r.AvailableDeviceIDs) != 4 ||
		r.AllocationSize != 3 {
		t.Errorf("asked %v", r)
	}
	m.FreePod("p")
	for claim, c := range map[string]struct {
		answer [][]string
		says   string
	}{
		"not available": {[][]string{{"x"}}, `"x", which is not available`},
		"too many":      {[][]string{{"a", "b", "c"}}, "3 devices, and 2"},
		"twice":         {[][]string{{"a", "a"}}, "twice"},
		"two answers":   {[][]string{{"a"}, {"b"}}, "2 containers"},
	} {
		answer = c.answer
		_, err := m.Allocate(context.Background(), want("q", "c", ask("c", 2)))
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", claim, err)
		}
		wantShown(t, m, "a", "b", "c", "d")
	}
	answer = [][]string{{"c"}}
	allocate(t, m, want("few", "c", ask("c", 2)))
	wantShown(t, m, "a few/c", "b", "c few/c", "d")
	answer = nil
	allocate(t, m, want("none", "c", ask("c", 1)))
	wantShown(t, m, "a few/c", "b none/c", "c few/c", "d")
	m.FreePod("few")
	m.FreePod("none")
	// Without what must be in it.
	answer = [][]string{{"c"}}
	allocate(t, m, want("p", "c", ask("c", 1)))
	m.Free("p-c-id")
	again.Asks, answer = []device.Ask{ask("c", 2)}, [][]string{{"a", "b"}}
	if _, err := m.Allocate(context.Background(), again); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), `without device "c"`) {
		t.Errorf("without what must be included: %v", err)
	}
}

func TestDevicesAreAlignedByNUMANode(t *testing.T) {
	m := start(t)
	numa := func(prefix string, nodes ...int64) []*pluginapi.Device {
		var out []*pluginapi.Device
		for i, node := range nodes {
			d := plugintest.Devices(fmt.Sprint(prefix, i))[0]
			d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}
			out = append(out, d)
		}
		return out
	}
	plug(t, m, &plugintest.Plugin{}, numa("g", 0, 1, 0, 1, 1)...)
	plug(t, m, &plugintest.Plugin{Endpoint: "nic.sock", Resource: "vendor.com/nic"}, numa("n", 0, 1)...)
	a := device.Ask{Container: "c", Limits: map[string]int{gpu: 3, "vendor.com/nic": 1}}
	allocate(t, m, want("p", "c", a))
	wantShown(t, m, "g0", "g1 p/c", "g2", "g3 p/c", "g4 p/c")
	if got := shown(m, "vendor.com/nic"); !slices.Equal(got, []string{"n0", "n1 p/c"}) {
		t.Errorf("the other resource: %q", got)
	}
}

func TestWhatFailsLeavesNothingAllocated(t *testing.T) {
	m := start(t)
	var answer func(context.Context) (*pluginapi.AllocateResponse, error)
	p := plug(t, m, &plugintest.Plugin{OnAllocate: func(ctx context.Context,
		_ *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		return answer(ctx)
	}}, plugintest.Devices("a", "b")...)
	one := func(c *pluginapi.ContainerAllocateResponse) func(context.Context) (*pluginapi.AllocateResponse, error) {
		return func(context.Context) (*pluginapi.AllocateResponse, error) {
			return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{c}}, nil
		}
	}
	for claim, c := range map[string]struct {
		answer func(context.Context) (*pluginapi.AllocateResponse, error)
		says   string
	}{
		"an error": {func(context.Context) (*pluginapi.AllocateResponse, error) { return nil, errors.New("no power") },
			"device plugin of vendor.com/gpu: Allocate: no power"},
		"no container": {func(context.Context) (*pluginapi.AllocateResponse, error) {
			return &pluginapi.AllocateResponse{}, nil
		},
			"answers for 0 containers"},
		"a variable without a name": {one(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"": "x"}}), "envs"},
		"a mount that is relative": {one(&pluginapi.ContainerAllocateResponse{
			Mounts: []*pluginapi.Mount{{ContainerPath: "x", HostPath: "/"}}}), "mounts[0]"},
		"a device that is relative": {
			one(&pluginapi.ContainerAllocateResponse{Devices: []*pluginapi.DeviceSpec{{HostPath: "x"}}}), "devices[0]"},
		"permissions that are none": {one(&pluginapi.ContainerAllocateResponse{
			Devices: []*pluginapi.DeviceSpec{{HostPath: "/x", Permissions: "all"}}}), "permissions"},
		"a CDI name that is none": {
			one(&pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "gpu0"}}}), "cdi_devices[0]"},
		"a panic that closes the stream": {func(context.Context) (*pluginapi.AllocateResponse, error) {
			return nil, status.Error(codes.Unavailable, "gone")
		}, "gone"},
	} {
		answer = c.answer
		_, err := m.Allocate(context.Background(), want("p", "c", ask("c", 1)))
		if err == nil || !strings.Contains(err.Error(), c.says) || errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", claim, err)
		}
		wantShown(t, m, "a", "b")
	}
	if entries, _ := os.ReadDir(filepath.Join(m.cfg.Root, "devices")); len(entries) != 0 {
		t.Errorf("records are left: %v", entries)
	}
	answer = one(&pluginapi.ContainerAllocateResponse{})
	allocate(t, m, want("p", "c", ask("c", 2)))
	// The container could not be made for another reason.
	m.Cancel("p", "p-c-id", true)
	wantShown(t, m, "a", "b")
	if _, err := m.Allocate(context.Background(), Request{SandboxID: "p", Container: "c", ContainerID: "x",
		Asks: []device.Ask{{Container: "c", Limits: map[string]int{"no.com/such": 1}}}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a resource that nobody offers: %v", err)
	}
	p.Stop()
}

// TestAPluginsCodesAreNotTheClients: some tell of the container to a client, who then waits for what never comes, or
// thinks that it is there already.
func TestAPluginsCodesAreNotTheClients(t *testing.T) {
	m := start(t)
	var code codes.Code
	plug(t, m, &plugintest.Plugin{OnAllocate: func(context.Context,
		*pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		return nil, status.Error(code, "no power")
	}}, plugintest.Devices("a")...)
	same := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Canceled}
	for code = codes.Canceled; code <= codes.Unauthenticated; code++ {
		wanted := codes.FailedPrecondition
		if slices.Contains(same, code) {
			wanted = code
		}
		_, err := m.Allocate(context.Background(), want("p", "c", ask("c", 1)))
		if got := status.Code(errgrpc.ToGRPC(err)); got != wanted {
			t.Errorf("%v is %v, not %v", code, got, wanted)
		}
		if code != codes.DeadlineExceeded && !strings.Contains(err.Error(), "no power") {
			t.Errorf("%v: %v", code, err)
		}
	}
}

func TestAPluginThatHangsEndsWithItsDeadline(t *testing.T) {
	m := start(t, func(c *Config) { c.Timeout = 3 * time.Second })
	hang := make(chan struct{})
	defer close(hang)
	plug(t, m, &plugintest.Plugin{OnAllocate: func(ctx context.Context,
		_ *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		<-hang // deaf to its context, too
		return nil, ctx.Err()
	}}, plugintest.Devices("a", "b")...)
	plug(t, m, &plugintest.Plugin{Endpoint: "nic.sock", Resource: "vendor.com/nic"}, plugintest.Devices("n")...)
	done := make(chan error, 1)
	go func() {
		_, err := m.Allocate(context.Background(), want("p", "c", ask("c", 1)))
		done <- err
	}()
	allocate(t, m, want("q", "c", device.Ask{Container: "c", Limits: map[string]int{"vendor.com/nic": 1}}))
	if err := <-done; !errdefs.IsDeadlineExceeded(err) ||
		!strings.Contains(err.Error(), "Allocate: no answer within 3s") {
		t.Errorf("error %v", err)
	}
	wantShown(t, m, "a", "b")
}

func TestPreStartIsToldWhereItIsAskedFor(t *testing.T) {
	m := start(t)
	var refuse error
	p := plug(t, m, &plugintest.Plugin{
		Options: &pluginapi.DevicePluginOptions{PreStartRequired: true},
		OnPreStart: func(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
			return &pluginapi.PreStartContainerResponse{}, refuse
		},
	}, plugintest.Devices("a", "b")...)
	quiet := plug(t, m, &plugintest.Plugin{Endpoint: "nic.sock", Resource: "vendor.com/nic"}, plugintest.Devices("n")...)
	allocate(t, m, want("p", "c", device.Ask{Container: "c", Limits: map[string]int{gpu: 2, "vendor.com/nic": 1}}))
	if err := m.PreStart(context.Background(), "p-c-id"); err != nil {
		t.Fatal(err)
	}
	if got := p.Last("PreStartContainer").(*pluginapi.PreStartContainerRequest).DevicesIds; !slices.Equal(got,
		[]string{"a", "b"}) {
		t.Errorf("told of %q", got)
	}
	if n := quiet.Calls("PreStartContainer"); n != 0 {
		t.Errorf("one that did not ask was told %d times", n)
	}
	refuse = errors.New("cannot reset")
	if err := m.PreStart(context.Background(), "p-c-id"); err == nil ||
		!strings.Contains(err.Error(), "PreStartContainer: cannot reset") {
		t.Errorf("error %v", err)
	}
	if err := m.PreStart(context.Background(), "another"); err != nil {
		t.Errorf("one without devices: %v", err)
	}
	p.Stop()
	eventually(t, "it is gone", func() bool { return !lives(m, gpu) })
	if err := m.PreStart(context.Background(), "p-c-id"); !errdefs.IsUnavailable(err) {
		t.Errorf("a plugin that is away: %v", err)
	}
}

// TestAPluginThatIsAwayHurtsNobodyWhoHasItsDevices, unless it wants to be told of starts. Containers were seen to fail
// while their plugin restarted, which had nothing to do for them any more.
func TestAPluginThatIsAwayHurtsNobodyWhoHasItsDevices(t *testing.T) {
	m := start(t)
	p := plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b", "c", "d")...)
	asks := []device.Ask{ask("one", 1), ask("two", 1), ask("three", 1), ask("four", 1)}
	allocate(t, m, want("p", "one", asks...))
	p.Stop()
	eventually(t, "it is gone", func() bool { return !lives(m, gpu) })
	if err := m.PreStart(context.Background(), "p-one-id"); err != nil {
		t.Errorf("the start of a container of a plugin that is away and needs not be told: %v", err)
	}
	if _, err := m.Allocate(context.Background(), want("p", "two", asks...)); err != nil {
		t.Errorf("what was allocated to the second container while the plugin was there: %v", err)
	}
	// It has registered, and has not said yet what it has.
	back := make(chan struct{})
	next := plugInTime(t, m, &plugintest.Plugin{OnOptions: func() (*pluginapi.DevicePluginOptions, error) {
		<-back
		return &pluginapi.DevicePluginOptions{}, nil
	}}, plugintest.Devices("a", "b", "c")...)
	if _, err := m.Allocate(context.Background(), want("p", "three", asks...)); err != nil {
		t.Errorf("before the plugin has said what it has: %v", err)
	}
	close(back)
	eventually(t, "its list is there", func() bool { return next.Calls("ListAndWatch") > 0 && lives(m, gpu) })
	if _, err := m.Allocate(context.Background(), want("p", "four", asks...)); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a device that the plugin has no more: %v", err)
	}
	// A record of an earlier version does not say whether the plugin is to be told.
	next.Stop()
	eventually(t, "it is gone", func() bool { return !lives(m, gpu) })
	m.mu.Lock()
	for _, g := range m.pods["p"].rec.Grants {
		g.PreStart = nil
	}
	m.mu.Unlock()
	if err := m.PreStart(context.Background(), "p-one-id"); !errdefs.IsUnavailable(err) {
		t.Errorf("a grant of an earlier version: %v", err)
	}
}

// plugInTime starts a plugin and registers it, without waiting for its devices.
func plugInTime(t *testing.T, m *Manager, p *plugintest.Plugin, devices ...*pluginapi.Device) *plugintest.Plugin {
	t.Helper()
	p.Dir, p.Resource, p.Endpoint = m.cfg.Dir, gpu, "p.sock"
	if err := p.Start(devices...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := p.Register(context.Background()); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRecordsOutliveTheManager(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b", "c", "d")...)
	asks := []device.Ask{ask("one", 1), ask("two", 1)}
	allocate(t, m, want("p", "one", asks...))
	allocate(t, m, want("gone", "c", ask("c", 1)))
	// A crash in the middle of an allocation leaves an intent.
	cut := `{"sandboxID":"cut","grants":[{"container":"c","containerID":"cut-c-id","devices":{"vendor.com/gpu":["d"]}}]}`
	if err := os.MkdirAll(filepath.Join(m.cfg.Root, "devices", "cut"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.cfg.Root, "devices", "cut", "allocation.json"), []byte(cut),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(m.cfg.Root, "devices", "broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.cfg.Root, "devices", "broken", "allocation.json"), []byte("{"),
		0o600); err != nil {
		t.Fatal(err)
	}
	// No Close: as after a kill.
	next, err := New(Config{Dir: t.TempDir(), Root: m.cfg.Root, Server: grpc.NewServer(), Log: m.log, Grace: time.Minute,
		Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	next.Reconcile(func(id string) bool { return id == "p" || id == "cut" }, func(id string) bool {
		return id == "p-one-id"
	})
	wantShown(t, next, "a- p/one", "b- p/two")
	if err := next.Serve(); err != nil {
		t.Fatal(err)
	}
	p := plug(t, next, &plugintest.Plugin{}, plugintest.Devices("a", "b", "c", "d")...)
	wantShown(t, next, "a p/one", "b p/two", "c", "d")
	// The pod's second container is made only now, and finds what it was promised.
	allocate(t, next, want("p", "two", asks...))
	if n := p.Calls("Allocate"); n != 0 {
		t.Errorf("allocated again: %d calls", n)
	}
	next.FreePod("p")
	next.FreePod("cut")
	entries, _ := os.ReadDir(filepath.Join(m.cfg.Root, "devices"))
	if len(entries) != 0 {
		t.Errorf("records are left: %v", entries)
	}
}

// TestARecordThatTheDiskDoesNotReturnKeepsItsDevices: there is no manager without it, so nobody gets them, and the
// record stays. It was seen to fail where such a record was removed as a damaged one.
func TestARecordThatTheDiskDoesNotReturnKeepsItsDevices(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a")...)
	allocate(t, m, want("p", "c", ask("c", 1)))
	again := func() (*Manager, error) {
		return New(Config{Dir: t.TempDir(), Root: m.cfg.Root, Server: grpc.NewServer(), Log: m.log, Grace: time.Minute,
			Timeout: 20 * time.Second})
	}
	dir := filepath.Join(m.cfg.Root, "devices", "p")
	for _, name := range []string{"allocation.json", "allocation.json.spare"} {
		path := filepath.Join(dir, name)
		if err := os.Rename(path, path+".aside"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/proc/self/mem", path); err != nil { // whose reads fail with EIO
			t.Fatal(err)
		}
	}
	if next, err := again(); !errors.Is(err, unix.EIO) {
		if err == nil {
			next.Close()
		}
		t.Errorf("a manager without the record: %v", err)
	}
	for _, name := range []string{"allocation.json", "allocation.json.spare"} {
		path := filepath.Join(dir, name)
		if err := os.Rename(path+".aside", path); err != nil {
			t.Fatal(err)
		}
	}
	next, err := again()
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	wantShown(t, next, "a- p/c")
}

// TestAContainerThatIsRefusedKeepsThePodFromHoldingMore, and no less than it needs. A pod whose first container has no
// devices was seen to lose those of all that come after the one that is refused.
func TestAContainerThatIsRefusedKeepsThePodFromHoldingMore(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	asks := []device.Ask{ask("one", 1), ask("two", 1)}
	allocate(t, m, want("p", "one", asks...))
	m.Cancel("p", "p-one-id", true) // it was the first: the plan goes with it
	wantShown(t, m, "a", "b")
	allocate(t, m, want("p", "one", asks...))
	allocate(t, m, want("p", "two", asks...))
	m.Cancel("p", "p-two-id", false)
	wantShown(t, m, "a p/one", "b")
	m.FreePod("p")

	allocate(t, m, want("q", "plain", asks...)) // it has no devices itself, and is made
	allocate(t, m, want("q", "one", asks...))
	m.Cancel("q", "q-one-id", false)
	wantShown(t, m, "a", "b q/two")
}

// TestARegistrantThatGoesAwayDisplacesNoPlugin: whether the other lives has not been found out. Seen to fail where the
// end of the registration was taken for the end of the other.
func TestARegistrantThatGoesAwayDisplacesNoPlugin(t *testing.T) {
	m := start(t)
	var calls atomic.Int32
	asked, hang := make(chan struct{}), make(chan struct{})
	plug(t, m, &plugintest.Plugin{OnOptions: func() (*pluginapi.DevicePluginOptions, error) {
		if calls.Add(1) > 1 { // the first is of its own registration
			close(asked)
			<-hang
		}
		return &pluginapi.DevicePluginOptions{}, nil
	}}, plugintest.Devices("a")...)
	defer close(hang)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := m.Register(ctx, another()); !errors.Is(err, context.Canceled) {
		t.Errorf("the registration ends with %v", err)
	}
	if !lives(m, gpu) {
		t.Errorf("the plugin is gone: %+v", m.List())
	}
}

// TestAPluginThatHangsIsReplaced: it kept its successor out for ever.
func TestAPluginThatHangsIsReplaced(t *testing.T) {
	m := start(t)
	var calls atomic.Int32
	hang := make(chan struct{})
	plug(t, m, &plugintest.Plugin{OnOptions: func() (*pluginapi.DevicePluginOptions, error) {
		if calls.Add(1) > 1 { // the first is of its own registration
			<-hang
		}
		return &pluginapi.DevicePluginOptions{}, nil
	}}, plugintest.Devices("a")...)
	defer close(hang)
	plug(t, m, &plugintest.Plugin{Endpoint: "next.sock"}, plugintest.Devices("a", "b")...)
	wantShown(t, m, "a", "b")
}

// TestARegistrationEndsWithTheManager: it was seen to probe the other plugin over and over until its own deadline.
func TestARegistrationEndsWithTheManager(t *testing.T) {
	m := start(t)
	plug(t, m, &plugintest.Plugin{}, plugintest.Devices("a")...)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := m.Register(ctx, another()); !errdefs.IsUnavailable(err) {
		t.Errorf("the registration ends with %v", err)
	}
}

// another is a second plugin for the resource gpu, which registers.
func another() *pluginapi.RegisterRequest {
	return &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "another.sock", ResourceName: gpu}
}

func TestThePluginsOptionsAreItsLastWord(t *testing.T) {
	for claim, c := range map[string]struct {
		said   bool // when it registers
		answer func() (*pluginapi.DevicePluginOptions, error)
		told   int
	}{
		"the answer counts more": {false, func() (*pluginapi.DevicePluginOptions, error) {
			return &pluginapi.DevicePluginOptions{PreStartRequired: true}, nil
		}, 1},
		"and takes back": {true, func() (*pluginapi.DevicePluginOptions, error) {
			return &pluginapi.DevicePluginOptions{}, nil
		}, 0},
		"a plugin without the call": {true, func() (*pluginapi.DevicePluginOptions, error) {
			return nil, status.Error(codes.Unimplemented, "unknown method")
		}, 1},
	} {
		m := start(t)
		p := plug(t, m, &plugintest.Plugin{Options: &pluginapi.DevicePluginOptions{PreStartRequired: c.said},
			OnOptions: c.answer},
			plugintest.Devices("a")...)
		allocate(t, m, want("p", "c", ask("c", 1)))
		if err := m.PreStart(context.Background(), "p-c-id"); err != nil {
			t.Fatal(err)
		}
		if n := p.Calls("PreStartContainer"); n != c.told {
			t.Errorf("%s: told %d times", claim, n)
		}
	}
}
