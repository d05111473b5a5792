package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet takes registrations, follows them, and keeps the last list of each resource.
type kubelet struct {
	pluginapi.UnsafeRegistrationServer
	t      *testing.T
	dir    string
	server *grpc.Server
	refuse error
	asked  func(endpoint string) // is called before a registration is answered; nil: nothing is

	mu       sync.Mutex
	requests []*pluginapi.RegisterRequest
	lists    map[string][]*pluginapi.Device
	at       map[string]time.Time
	ends     []context.CancelFunc
}

func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	k := prepareKubelet(t, dir)
	k.listen()
	return k
}

func prepareKubelet(t *testing.T, dir string) *kubelet {
	k := &kubelet{t: t, dir: dir, server: grpc.NewServer(), lists: map[string][]*pluginapi.Device{},
		at: map[string]time.Time{}}
	pluginapi.RegisterRegistrationServer(k.server, k)
	return k
}

func (k *kubelet) listen() {
	k.t.Helper()
	l, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		k.t.Fatal(err)
	}
	go func() { _ = k.server.Serve(l) }()
	k.t.Cleanup(k.stop)
}

func (k *kubelet) stop() {
	k.server.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, end := range k.ends {
		end()
	}
}

func (k *kubelet) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if k.asked != nil {
		k.asked(req.Endpoint)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests = append(k.requests, req)
	if k.refuse != nil {
		return nil, k.refuse
	}
	ctx, end := context.WithCancel(context.Background())
	k.ends = append(k.ends, end)
	go k.follow(ctx, req)
	return &pluginapi.Empty{}, nil
}

func (k *kubelet) client(endpoint string) (pluginapi.DevicePluginClient, func()) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return pluginapi.NewDevicePluginClient(conn), func() { conn.Close() }
}

func (k *kubelet) follow(ctx context.Context, req *pluginapi.RegisterRequest) {
	client, end := k.client(req.Endpoint)
	defer end()
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.mu.Lock()
			k.lists[req.ResourceName], k.at[req.ResourceName] = list.Devices, time.Now()
			k.mu.Unlock()
		}
	}
}

// devices are the last list of a resource: IDs, - after those that are unhealthy.
func (k *kubelet) devices(resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, d := range k.lists[resource] {
		text := d.ID
		if d.Health != pluginapi.Healthy {
			text += "-"
		}
		out = append(out, text)
	}
	return out
}

func (k *kubelet) want(resource string, list ...string) {
	k.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !slices.Equal(k.devices(resource), list) {
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: got %q, want %q", resource, k.devices(resource), list)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func load(t *testing.T, text string) *Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device-plugin.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// short is a directory whose name leaves room for those of sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// offer runs the plugin until the test ends.
func offer(t *testing.T, cfg *Config, sys string) (dir string) {
	t.Helper()
	cfg.Dir = short(t)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }, Sys: sys})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return cfg.Dir
}

// node makes a device node: a copy of /dev/null, or another minor.
func node(t *testing.T, path string, minor uint32) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
		t.Skipf("device nodes cannot be made here: %v", err)
	}
}

func TestWhatToOfferIsChecked(t *testing.T) {
	for claim, c := range map[string]struct{ text, says string }{
		"nothing": {"", "nothing to offer"},
		"an unknown key": {"[[resource]]\nname = \"a.com/b\"\nnode = [\"/dev/null\"]\n",
			":3: resource.node: unknown key"},
		"a wrong type":       {"[[resource]]\nname = 5\n", ":2: "},
		"a bad name":         {"[[resource]]\nname = \"gpu\"\nnodes = [\"/dev/null\"]\n", "resource 1 (gpu): name"},
		"no devices":         {"[[resource]]\nname = \"a.com/b\"\n", "none of nodes, groups and cdi"},
		"two kinds":          {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/null\"]\ncdi = \"a.com/b\"\n", "excludes"},
		"a relative path":    {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"null\"]\n", "absolute"},
		"a path that climbs": {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/../etc/x\"]\n", ".."},
		"a bad pattern":      {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/[\"]\n", "pattern"},
		"an empty group":     {"[[resource]]\nname = \"a.com/b\"\ngroups = [[]]\n", "groups[0]"},
		"a bad kind":         {"[[resource]]\nname = \"a.com/b\"\ncdi = \"gpu\"\n", "cdi"},
		"bad permissions": {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/null\"]\npermissions = \"x\"\n",
			"permissions"},
		"a bad share": {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/null\"]\nshare = -1\n", "share"},
		"a name twice": {"[[resource]]\nname = \"a.com/b\"\nnodes = [\"/dev/null\"]\n[[resource]]\n" +
			"name = \"a.com/b\"\nnodes = [\"/dev/null\"]\n", "twice"},
	} {
		path := filepath.Join(t.TempDir(), "p.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", claim, err)
		}
	}
	// The file that is installed has examples of all keys and offers nothing; with the examples it is good.
	path := filepath.Join(t.TempDir(), "p.toml")
	text := strings.ReplaceAll(strings.ReplaceAll(string(DefaultFile()), "\n#", "\n"), "\n ", "\n#")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if cfg, err := Load(path); err != nil || len(cfg.Resources) != 4 {
		t.Errorf("the examples: %v", err)
	}
}

func TestNodesComeAndGoWithinASecond(t *testing.T) {
	dev := t.TempDir()
	node(t, dev+"/tty0", 3)
	if err := os.WriteFile(dev+"/tty-not", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, fmt.Sprintf(
		"[[resource]]\nname = \"t.com/tty\"\nnodes = [%q]\n[[resource]]\nname = \"t.com/deep\"\nnodes = [%q, %q]\n",
		dev+"/tty*", dev+"/bus/*/x*", dev+"/one"))
	dir := offer(t, cfg, "")
	k := startKubelet(t, dir)
	in := strings.TrimPrefix(dev, "/dev/")
	id := func(name string) string { return shortened(in + "/" + name) }
	k.want("t.com/tty", id("tty0"))
	k.want("t.com/deep", id("one")+"-")
	for _, step := range []struct {
		do       func()
		resource string
		want     []string
	}{
		{func() { node(t, dev+"/tty1", 3) }, "t.com/tty", []string{id("tty0"), id("tty1")}},
		{func() { os.Remove(dev + "/tty0") }, "t.com/tty", []string{id("tty0") + "-", id("tty1")}},
		{func() { node(t, dev+"/tty0", 3) }, "t.com/tty", []string{id("tty0"), id("tty1")}},
		{func() { node(t, dev+"/one", 3) }, "t.com/deep", []string{id("one")}},
		{func() { node(t, dev+"/bus/1/x1", 3) }, "t.com/deep", []string{id("bus/1/x1"), id("one")}},
		{func() { node(t, dev+"/bus/2/x1", 3) }, "t.com/deep", []string{id("bus/1/x1"), id("bus/2/x1"), id("one")}},
	} {
		slices.Sort(step.want)
		begin := time.Now()
		step.do()
		k.want(step.resource, step.want...)
		k.mu.Lock()
		took := k.at[step.resource].Sub(begin)
		k.mu.Unlock()
		t.Logf("seen after %v", took)
		if took > sweep/2 {
			t.Errorf("seen after %v: not by an event", took)
		}
	}
}

func TestAllocateGivesNodesAndRefusesWhatIsGone(t *testing.T) {
	dev := t.TempDir()
	node(t, dev+"/a", 3)
	node(t, dev+"/b0", 5)
	node(t, dev+"/b1", 7)
	cfg := load(t, fmt.Sprintf(
		"[[resource]]\nname = \"t.com/x\"\nnodes = [%q]\ngroups = [[%q, %q], [%q, %q]]\npermissions = \"r\"\nshare = 2\n",
		dev+"/a", dev+"/a", dev+"/b*", dev+"/a", dev+"/none*"))
	k := startKubelet(t, offer(t, cfg, ""))
	// The kubelet was there first or last: it does not matter.
	deadline := time.Now().Add(30 * time.Second)
	for len(k.devices("t.com/x")) != 6 {
		if time.Now().After(deadline) {
			t.Fatal(k.devices("t.com/x"))
		}
		time.Sleep(2 * time.Millisecond)
	}
	k.mu.Lock()
	endpoint, asked := k.requests[0].Endpoint, k.requests[0]
	k.mu.Unlock()
	if asked.Version != "v1beta1" || !asked.Options.GetPreferredAllocationAvailable || asked.Options.PreStartRequired {
		t.Errorf("registered with %v", asked)
	}
	client, end := k.client(endpoint)
	defer end()
	if o, err := client.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{}); err != nil ||
		!o.GetPreferredAllocationAvailable {
		t.Errorf("options %v, %v", o, err)
	}
	if _, err := client.PreStartContainer(t.Context(), &pluginapi.PreStartContainerRequest{}); err != nil {
		t.Error(err)
	}
	trim := func(s string) string { return shortened(s) }
	a := trim(strings.TrimPrefix(dev+"/a", "/dev/"))
	both := trim(strings.TrimPrefix(dev+"/a", "/dev/") + "+" + strings.TrimPrefix(dev+"/b*", "/dev/"))
	none := trim(strings.TrimPrefix(dev+"/a", "/dev/") + "+" + strings.TrimPrefix(dev+"/none*", "/dev/"))
	allocate := func(ids ...string) (*pluginapi.AllocateResponse, error) {
		return client.Allocate(t.Context(),
			&pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	}
	got, err := allocate(a+"::0", a+"::1", both+"::1")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, d := range got.ContainerResponses[0].Devices {
		paths = append(paths, d.HostPath+" "+d.ContainerPath+" "+d.Permissions)
	}
	want := []string{dev + "/a " + dev + "/a r", dev + "/b0 " + dev + "/b0 r", dev + "/b1 " + dev + "/b1 r"}
	if !slices.Equal(paths, want) {
		t.Errorf("got %q, want %q", paths, want)
	}
	if _, err := allocate(none + "::0"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an unhealthy one: %v", err)
	}
	if _, err := allocate("other"); status.Code(err) != codes.NotFound {
		t.Errorf("one that is not: %v", err)
	}
	os.Remove(dev + "/a")
	if _, err := allocate(a + "::0"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("one that has gone: %v", err)
	}
}

func TestDevicesOfACDIKind(t *testing.T) {
	dev, cdiDir := t.TempDir(), filepath.Join(t.TempDir(), "late", "cdi")
	node(t, dev+"/g0", 3)
	cfg := load(t, fmt.Sprintf("cdi_spec_dirs = [%q]\n[[resource]]\nname = \"t.com/gpu\"\ncdi = \"v.com/gpu\"\n", cdiDir))
	k := startKubelet(t, offer(t, cfg, ""))
	spec := func(names ...string) {
		text := "cdiVersion: 0.6.0\nkind: v.com/gpu\ndevices:\n"
		for _, name := range names {
			text += fmt.Sprintf(
				"- name: %q\n  containerEdits:\n    deviceNodes:\n    - path: /dev/gpu\n      hostPath: %s/g%s\n", name, dev, name)
		}
		if err := os.MkdirAll(cdiDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(cdiDir+"/v.yaml.tmp", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(cdiDir+"/v.yaml.tmp", cdiDir+"/v.yaml"); err != nil {
			t.Fatal(err)
		}
	}
	spec("0", "1", "all")
	k.want("t.com/gpu", "0", "1-")
	node(t, dev+"/g1", 5)
	k.want("t.com/gpu", "0", "1")
	spec("1")
	k.want("t.com/gpu", "0-", "1")
	client, end := k.client(k.requests[0].Endpoint)
	defer end()
	got, err := client.Allocate(t.Context(),
		&pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"1"}}}})
	if err != nil || len(got.ContainerResponses[0].CdiDevices) != 1 ||
		got.ContainerResponses[0].CdiDevices[0].Name != "v.com/gpu=1" ||
		len(got.ContainerResponses[0].Devices) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestNUMANodesComeFromSysfs(t *testing.T) {
	// The paths of the devices are their IDs, of which long ones are shortened: the test's name is not in them.
	dev, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dev) })
	sys := t.TempDir()
	place := func(minor uint32, node string) {
		dir := fmt.Sprintf("%s/devices/pci%d/card/x", sys, minor)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/devices/pci%d/numa_node", sys, minor), []byte(node+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(sys+"/dev/char", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, fmt.Sprintf("%s/dev/char/1:%d", sys, minor)); err != nil {
			t.Fatal(err)
		}
	}
	// x3 and x7 are on node 0, x5 and x8 on node 1, x9 on none, and of x11 nothing is known.
	for minor, numa := range map[uint32]string{3: "0", 7: "0", 5: "1", 8: "1", 9: "-1"} {
		place(minor, numa)
	}
	for _, minor := range []uint32{3, 5, 7, 8, 9, 11} {
		node(t, fmt.Sprintf("%s/x%d", dev, minor), minor)
	}
	cfg := load(t, fmt.Sprintf("[[resource]]\nname = \"t.com/x\"\nnodes = [%q]\ngroups = [[%q, %q]]\n", dev+"/x*",
		dev+"/x3", dev+"/x5"))
	k := startKubelet(t, offer(t, cfg, sys))
	deadline := time.Now().Add(30 * time.Second)
	for len(k.devices("t.com/x")) != 7 {
		if time.Now().After(deadline) {
			t.Fatal(k.devices("t.com/x"))
		}
		time.Sleep(2 * time.Millisecond)
	}
	numa := map[string]string{}
	k.mu.Lock()
	for _, d := range k.lists["t.com/x"] {
		var nodes []int64
		for _, n := range d.GetTopology().GetNodes() {
			nodes = append(nodes, n.ID)
		}
		numa[filepath.Base(d.ID)] = fmt.Sprint(nodes)
	}
	endpoint := k.requests[0].Endpoint
	k.mu.Unlock()
	for name, want := range map[string]string{"x3": "[0]", "x5": "[1]", "x8": "[1]", "x9": "[]", "x11": "[]"} {
		if got := numa[name]; got != want {
			t.Errorf("%s: %s, want %s (%v)", name, got, want, numa)
		}
	}
	id := func(n int) string { return strings.TrimPrefix(fmt.Sprintf("%s/x%d", dev, n), "/dev/") }
	client, end := k.client(endpoint)
	defer end()
	prefer := func(n int32, must []string, available ...string) []string {
		got, err := client.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
				{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: n}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return got.ContainerResponses[0].DeviceIDs
	}
	if got := prefer(2, nil, id(3), id(5), id(8), id(9)); !slices.Equal(got, []string{id(5), id(8)}) {
		t.Errorf("two of one node: %q", got)
	}
	if got := prefer(2, []string{id(3)}, id(3), id(5), id(7), id(8)); !slices.Equal(got, []string{id(3), id(7)}) {
		t.Errorf("with one that must be included: %q", got)
	}
}

func TestSharesOfOneDeviceGoToDifferentContainers(t *testing.T) {
	v := &inventory{Resource: &Resource{Share: 3}}
	units := []unit{{id: "a", healthy: true}, {id: "b", healthy: true}}
	if got := v.prefer(units, []string{"a::1", "a::2", "b::0", "b::1", "b::2"}, nil, 1); !slices.Equal(got,
		[]string{"b::0"}) {
		t.Errorf("the one that fewer share: %q", got)
	}
	if got := v.prefer(units, []string{"a::1", "a::2", "b::0"}, nil, 2); !slices.Equal(got, []string{"a::1", "b::0"}) {
		t.Errorf("two different ones: %q", got)
	}
	if got := v.prefer(units, []string{"a::1", "a::2", "b::0"}, []string{"a::2"}, 2); !slices.Equal(got,
		[]string{"a::2", "b::0"}) {
		t.Errorf("with one that must be included: %q", got)
	}
	if got := v.prefer(units, []string{"a::1", "a::2", "b::0"}, nil, 3); len(got) != 3 {
		t.Errorf("all: %q", got)
	}
	if got := v.prefer(units, []string{"a::1"}, nil, 2); got != nil {
		t.Errorf("more than there are: %q", got)
	}
	if n := len(v.offer(units)); n != 6 {
		t.Errorf("%d are offered", n)
	}
	long := shortened(strings.Repeat("x", 100))
	for _, id := range v.shares(long) {
		if len(id) > maxID {
			t.Errorf("%q has %d bytes", id, len(id))
		}
	}
	if long == shortened(strings.Repeat("x", 101)) {
		t.Error("two long names are one")
	}
}

func TestItRegistersAgainWhenTheKubeletComesBack(t *testing.T) {
	cfg := load(t, "[[resource]]\nname = \"t.com/null\"\nnodes = [\"/dev/null\"]\n[[resource]]\n"+
		"name = \"t.com/a.very.long.name.that.makes.a.long.socket.path\"\nnodes = [\"/dev/zero\"]\n")
	dir := offer(t, cfg, "")
	for i := range 3 {
		k := startKubelet(t, dir)
		k.want("t.com/null", "null")
		k.want("t.com/a.very.long.name.that.makes.a.long.socket.path", "zero")
		k.stop()
		// As a kubelet does when it starts: everything in the directory goes.
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) < 2 {
			t.Errorf("round %d: %v", i, entries)
		}
		for _, e := range entries {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// start runs the plugin until the test ends. The channel tells of an end before.
func start(t *testing.T, cfg *Config) (ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, gone := make(chan error, 1), make(chan struct{})
	go func() {
		done <- Run(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler)})
		close(gone)
	}()
	t.Cleanup(func() { cancel(); <-gone })
	return done
}

// "Device plugin is expected to terminate upon registration failure." With the refusal taken for no answer it is tried
// again for ever.
func TestARefusedRegistrationEndsThePlugin(t *testing.T) {
	for name, refusal := range map[string]error{
		"taken":   status.Error(codes.AlreadyExists, "another plugin has it"),
		"version": status.Error(codes.InvalidArgument, "another plugin has it"),
		// Kubelets give plain errors.
		"plain": errors.New("another plugin has it"),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := load(t, "[[resource]]\nname = \"t.com/null\"\nnodes = [\"/dev/null\"]\n")
			cfg.Dir = short(t)
			k := startKubelet(t, cfg.Dir)
			k.mu.Lock()
			k.refuse = refusal
			k.mu.Unlock()
			select {
			case err := <-start(t, cfg):
				if err == nil || !strings.Contains(err.Error(), "t.com/null") ||
					!strings.Contains(err.Error(), "another plugin has it") {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it has not ended")
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			if len(k.requests) != 1 {
				t.Errorf("%d registrations", len(k.requests))
			}
			if entries, _ := filepath.Glob(cfg.Dir + "/berth-*"); len(entries) != 0 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

// A socket without anybody behind it is a kubelet that has died, or does not listen yet. With every error
// of a registration taken for a refusal the plugin ends.
func TestAKubeletThatDoesNotAnswerIsWaitedFor(t *testing.T) {
	cfg := load(t, "[[resource]]\nname = \"t.com/null\"\nnodes = [\"/dev/null\"]\n")
	cfg.Dir = short(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(cfg.Dir, "kubelet.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	done := start(t, cfg)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		// It has tried: its socket is there for the kubelet's answer.
		if exists(filepath.Join(cfg.Dir, "berth-t.com_null.sock")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not try")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(2 * retry):
	}
	if err := os.Remove(filepath.Join(cfg.Dir, "kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	startKubelet(t, cfg.Dir).want("t.com/null", "null")
}

// "Only when Kubelet answers with a success code to a Register Request may Device Plugins start
// their service." Without the interceptors the calls are answered at once, and with the sockets made at the start
// there is one without a kubelet.
func TestTheServiceStartsWithTheKubeletsWord(t *testing.T) {
	cfg := load(t, "[[resource]]\nname = \"t.com/null\"\nnodes = [\"/dev/null\"]\n")
	cfg.Dir = short(t)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }})
	}()
	<-ready
	time.Sleep(200 * time.Millisecond) // for a socket that should not come
	if entries, _ := filepath.Glob(cfg.Dir + "/*"); len(entries) != 0 {
		t.Errorf("without a kubelet there is %v", entries)
	}
	allocate := &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"null"}}}}
	k := prepareKubelet(t, cfg.Dir)
	k.asked = func(endpoint string) {
		client, end := k.client(endpoint)
		defer end()
		// As kubelets do.
		if _, err := client.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{}); err != nil {
			t.Errorf("the options during the registration: %v", err)
		}
		brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := client.Allocate(brief, allocate); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("an allocation during the registration: %v", err)
		}
		stream, err := client.ListAndWatch(brief, &pluginapi.Empty{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a list during the registration: %v", err)
		}
	}
	k.listen()
	k.want("t.com/null", "null")
	client, end := k.client("berth-t.com_null.sock")
	defer end()
	if _, err := client.Allocate(t.Context(), allocate); err != nil {
		t.Errorf("an allocation after the registration: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestItRegistersAgainWhereNobodyWatches(t *testing.T) {
	cfg := load(t, "[[resource]]\nname = \"t.com/null\"\nnodes = [\"/dev/null\"]\n")
	cfg.Dir = short(t)
	k := startKubelet(t, cfg.Dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler), Patience: 100 * time.Millisecond})
	}()
	k.want("t.com/null", "null")
	k.mu.Lock()
	before := len(k.requests)
	for _, end := range k.ends {
		end() // the stream breaks, and the kubelet says nothing
	}
	k.mu.Unlock()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		k.mu.Lock()
		n := len(k.requests)
		k.mu.Unlock()
		if n > before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not register again")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
