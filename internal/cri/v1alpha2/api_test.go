package v1alpha2

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/cri"
	criv1 "berth/internal/cri/v1"
	"berth/internal/model"
	"berth/internal/pod"
)

// The domain has what the API calls.
var (
	_ Extensions = (*pod.Manager)(nil)
	_ Volumes    = (*pod.Manager)(nil)
)

// volumes is a store that is asked for nothing, or keeps what it was asked for.
type volumes struct{ removed *string }

func (v volumes) RemoveVolume(_ context.Context, name string) error {
	*v.removed = name
	return nil
}

// domain keeps what it is told. Calls that a test does not expect fail, as methods of a nil interface.
type domain struct {
	criv1.Runtime
	criv1.Images

	sandbox   *model.SandboxConfig
	container *model.ContainerConfig
	resources *model.Resources
	filter    model.ContainerFilter
	handler   string
	called    []string
	status    *model.ContainerStatus
	image     *model.Image
}

func (d *domain) RunSandbox(_ context.Context, cfg *model.SandboxConfig, handler string) (string, error) {
	d.sandbox, d.handler = cfg, handler
	return "p", nil
}

func (d *domain) CreateContainer(_ context.Context, _ string, cfg *model.ContainerConfig) (string, error) {
	d.container = cfg
	return "c", nil
}

func (d *domain) UpdateContainerResources(_ context.Context, _ string, r *model.Resources, _ map[string]string) error {
	d.resources = r
	return nil
}

func (d *domain) ContainerStatus(context.Context, string) (*model.ContainerStatus, error) {
	return d.status, nil
}

func (d *domain) ListContainers(_ context.Context, f model.ContainerFilter) ([]*model.ContainerStatus, error) {
	d.filter = f
	return []*model.ContainerStatus{d.status}, nil
}

// ListSandboxes answers with a sandbox of each state that the filter lets pass.
func (d *domain) ListSandboxes(_ context.Context, f model.SandboxFilter) (list []*model.SandboxStatus, err error) {
	for _, state := range []model.SandboxState{model.SandboxReady, model.SandboxNotReady} {
		if f.State == "" || f.State == state {
			list = append(list, &model.SandboxStatus{ID: "pod-" + string(state), State: state, Config: &model.SandboxConfig{}})
		}
	}
	return list, nil
}

func (d *domain) Get(context.Context, string) (*model.Image, error) { return d.image, nil }
func (d *domain) List(context.Context) ([]*model.Image, error)      { return []*model.Image{d.image}, nil }

func (d *domain) note(call, id string) error {
	d.called = append(d.called, call+" "+id)
	if id == "fails" {
		return fmt.Errorf("%s: %w", id, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (d *domain) StartSandbox(_ context.Context, id string) error     { return d.note("start", id) }
func (d *domain) PauseContainer(_ context.Context, id string) error   { return d.note("pause", id) }
func (d *domain) UnpauseContainer(_ context.Context, id string) error { return d.note("unpause", id) }

// client speaks v1's messages to an API, by that API's name.
type client struct {
	api.RuntimeServiceClient
	api.ImageServiceClient
}

type named struct {
	*grpc.ClientConn
	version string
}

func (n named) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	return n.ClientConn.Invoke(ctx, strings.Replace(method, "runtime.v1.", "runtime."+n.version+".", 1), in, out, opts...)
}

func (n named) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return n.ClientConn.NewStream(ctx, desc, strings.Replace(method, "runtime.v1.", "runtime."+n.version+".", 1), opts...)
}

type fixture struct {
	*domain
	v1, v1alpha2 client
	conn         *grpc.ClientConn
	removed      string
	mu           sync.Mutex
	log          bytes.Buffer
}

func (d *fixture) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func open(t *testing.T) *fixture {
	t.Helper()
	d := &fixture{domain: &domain{}}
	log := slog.New(slog.NewTextHandler(d, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server, err := cri.NewServer(cri.ServerConfig{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	deps := criv1.Deps{Runtime: d.domain, Images: d.domain, Version: "0.1.0"}
	criv1.Register(server, deps)
	Register(server, deps, d.domain, volumes{&d.removed})
	address := "unix://" + filepath.Join(t.TempDir(), "s")
	listener, err := cri.Listen(address, -1)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	d.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.conn.Close() })
	for version, to := range map[string]*client{"v1": &d.v1, "v1alpha2": &d.v1alpha2} {
		conn := named{d.conn, version}
		*to = client{api.NewRuntimeServiceClient(conn), api.NewImageServiceClient(conn)}
	}
	return d
}

// with is a message with PouchContainer's fields added.
func with[M proto.Message](m M, ext proto.Message) M {
	write(m, ext)
	return m
}

func resources() *pouch.LinuxContainerResources {
	throttle := func(rate uint64) []*pouch.ThrottleDevice {
		return []*pouch.ThrottleDevice{{Path: "/dev/a", Rate: rate}}
	}
	return &pouch.LinuxContainerResources{
		DiskQuota: map[string]string{"/": "10g"}, BlkioWeight: 300,
		BlkioWeightDevice:  []*pouch.WeightDevice{{Path: "/dev/a", Weight: 20}},
		BlkioDeviceReadBps: throttle(1), BlkioDeviceWriteBps: throttle(2), BlkioDeviceRead_IOps: throttle(3),
		BlkioDeviceWrite_IOps: throttle(4),
		KernelMemory:          5, MemoryReservation: 6, MemorySwappiness: &pouch.Int64Value{},
		Ulimits: []*pouch.Ulimit{{Name: "nofile", Hard: -1, Soft: 9}},
	}
}

func container() *api.CreateContainerRequest {
	return &api.CreateContainerRequest{PodSandboxId: "p", Config: with(&api.ContainerConfig{
		Metadata: &api.ContainerMetadata{Name: "web"},
		Image:    with(&api.ImageSpec{Image: "i"}, &pouch.ImageSpec{SpecAnnotations: map[string]string{"a": "b"}}),
		Mounts: []*api.Mount{with(&api.Mount{ContainerPath: "/data"}, &pouch.Mount{Name: "vol"}),
			{ContainerPath: "/x", HostPath: "/y"}},
		Annotations: map[string]string{
			"io.alibaba.pouch.resources.memory-swap": "200", "io.alibaba.pouch.resources.pids-limit": "-1",
		},
		Linux: &api.LinuxContainerConfig{
			Resources: with(&api.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 100}, resources())},
	}, &pouch.ContainerConfig{NetPriority: 7, QuotaId: "16777216"})}
}

func TestWhatPouchContainerAddsIsTranslatedBothWays(t *testing.T) {
	d := open(t)
	if _, err := d.v1alpha2.CreateContainer(t.Context(), container()); err != nil {
		t.Fatal(err)
	}
	c, zero := d.container, int64(0)
	if c.NetPriority != 7 || c.QuotaID != "16777216" || c.Mounts[0].Volume != "vol" || c.Mounts[1].HostPath != "/y" ||
		c.Image.SpecAnnotations["a"] != "b" {
		t.Errorf("%+v", c)
	}
	want := &model.Resources{
		CPUShares: 512, MemoryLimit: 100, MemorySwap: 200, PidsLimit: -1, DiskQuota: map[string]string{"/": "10g"},
		KernelMemory: 5, MemoryReservation: 6, MemorySwappiness: &zero,
		Ulimits: []model.Ulimit{{Name: "nofile", Hard: -1, Soft: 9}},
		BlockIO: &model.BlockIO{
			Weight: 300, WeightDevices: []model.WeightDevice{{Path: "/dev/a", Weight: 20}},
			ReadBps:   []model.ThrottleDevice{{Path: "/dev/a", Rate: 1}},
			WriteBps:  []model.ThrottleDevice{{Path: "/dev/a", Rate: 2}},
			ReadIOPS:  []model.ThrottleDevice{{Path: "/dev/a", Rate: 3}},
			WriteIOPS: []model.ThrottleDevice{{Path: "/dev/a", Rate: 4}},
		},
	}
	if got, want := fmt.Sprintf("%+v %+v %v", *c.Resources, *c.Resources.BlockIO, *c.Resources.MemorySwappiness),
		fmt.Sprintf("%+v %+v %v", *want, *want.BlockIO, 0); plain(got) != plain(want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	d.status = &model.ContainerStatus{ID: "c", Config: c, State: model.ContainerPaused, CreatedAt: time.Unix(1, 0),
		Resources:   c.Resources,
		VolumePaths: []string{"/volumes/vol"},
		Volumes:     []string{"/data"}, QuotaID: "16777216", Env: []model.EnvVar{{Key: "K", Value: "\xff"}}}
	resp, err := d.v1alpha2.ContainerStatus(t.Context(), &api.ContainerStatusRequest{ContainerId: "c"})
	if err != nil {
		t.Fatal(err)
	}
	st, ext := resp.Status, &pouch.ContainerStatus{}
	reread(t, st, ext)
	linux, told := &api.LinuxContainerResources{}, &pouch.LinuxContainerResources{}
	mount, spec := &pouch.Mount{}, &pouch.ImageSpec{}
	if err := proto.Unmarshal(ext.Resources, linux); err != nil {
		t.Fatal(err)
	}
	reread(t, linux, told)
	reread(t, st.Mounts[0], mount)
	reread(t, st.Image, spec)
	if st.State != containerPause || !proto.Equal(told, resources()) || linux.CpuShares != 512 ||
		linux.MemoryLimitInBytes != 100 ||
		mount.Name != "vol" || st.Mounts[0].HostPath != "/volumes/vol" ||
		spec.SpecAnnotations["a"] != "b" || ext.QuotaId != "16777216" || ext.Volumes["/data"] == nil ||
		len(ext.Envs) != 1 || ext.Envs[0].Key != "K" || string(ext.Envs[0].Value) != "\xff" {
		t.Errorf("%v, %v, %v", st, ext, told)
	}
	if len(st.Mounts[1].ProtoReflect().GetUnknown()) > 0 {
		t.Error("a mount without a name has fields of PouchContainer")
	}
	list, err := d.v1alpha2.ListContainers(t.Context(), &api.ListContainersRequest{Filter: &api.ContainerFilter{
		State: &api.ContainerStateValue{State: containerPause}}})
	if err != nil || list.Containers[0].State != containerPause || len(d.filter.States) != 1 ||
		d.filter.States[0] != model.ContainerPaused {
		t.Errorf("%v, %v, filter %v", list, err, d.filter)
	}
	reread(t, list.Containers[0].Image, spec)
	if spec.SpecAnnotations["a"] != "b" {
		t.Errorf("the list tells %v", list)
	}

	if _, err := d.v1alpha2.UpdateContainerResources(t.Context(), &api.UpdateContainerResourcesRequest{ContainerId: "c",
		Linux: with(&api.LinuxContainerResources{}, resources())}); err != nil || d.resources.BlockIO.Weight != 300 {
		t.Errorf("%+v, %v", d.resources, err)
	}

	d.image = &model.Image{ID: "sha256:1", Config: imagespec.ImageConfig{Volumes: map[string]struct{}{"/v": {}}}}
	image, err := d.v1alpha2.ImageStatus(t.Context(), &api.ImageStatusRequest{Image: &api.ImageSpec{Image: "i"}})
	images, listErr := d.v1alpha2.ListImages(t.Context(), &api.ListImagesRequest{})
	if err != nil || listErr != nil {
		t.Fatal(err, listErr)
	}
	for _, img := range []*api.Image{image.Image, images.Images[0]} {
		ext := &pouch.Image{}
		if reread(t, img, ext); ext.Volumes["/v"] == nil {
			t.Errorf("an image tells %v", img)
		}
	}
}

// plain leaves pointers out of a printed value.
func plain(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		if _, p, ok := strings.Cut(w, ":0x"); ok {
			words[i] = strings.TrimSuffix(w, p)
		}
	}
	return strings.Join(words, " ")
}

func reread(t *testing.T, m, ext proto.Message) {
	t.Helper()
	proto.Reset(ext)
	if err := proto.Unmarshal(m.ProtoReflect().GetUnknown(), ext); err != nil {
		t.Fatal(err)
	}
}

func TestV1KnowsNothingOfIt(t *testing.T) {
	d := open(t)
	req := container()
	if _, err := d.v1.CreateContainer(t.Context(), req); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a mount with a name alone: %v", err)
	}
	req.Config.Mounts = nil
	if _, err := d.v1.CreateContainer(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	c := d.container
	if c.NetPriority != 0 || c.QuotaID != "" || c.Resources.BlockIO != nil || c.Resources.PidsLimit != 0 ||
		len(c.Resources.Ulimits) > 0 {
		t.Errorf("%+v", c)
	}
	d.status = &model.ContainerStatus{ID: "c", Config: &model.ContainerConfig{},
		State: model.ContainerPaused, QuotaID: "1",
		Resources: &model.Resources{PidsLimit: 1}, Volumes: []string{"/v"}}
	resp, err := d.v1.ContainerStatus(t.Context(), &api.ContainerStatusRequest{ContainerId: "c"})
	if err != nil || resp.Status.State != api.ContainerState_CONTAINER_RUNNING ||
		len(resp.Status.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = d.v1.ListContainers(t.Context(), &api.ListContainersRequest{Filter: &api.ContainerFilter{
		State: &api.ContainerStateValue{State: containerPause}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a filter by a state that v1 has not: %v", err)
	}
	if _, err := d.v1.ListContainers(t.Context(), &api.ListContainersRequest{Filter: &api.ContainerFilter{
		State: &api.ContainerStateValue{State: api.ContainerState_CONTAINER_RUNNING}}}); err != nil ||
		len(d.filter.States) != 2 {
		t.Errorf("%v, filter %v", err, d.filter)
	}
}

func TestWhatPouchContainerDoesNotAllowIsRefusedByPath(t *testing.T) {
	d := open(t)
	limits := func(r *pouch.LinuxContainerResources) func(*api.ContainerConfig) {
		return func(c *api.ContainerConfig) { c.Linux.Resources = with(&api.LinuxContainerResources{}, r) }
	}
	const at = "config.linux.resources."
	for path, edit := range map[string]func(*api.ContainerConfig){
		at + "blkio_weight:": limits(&pouch.LinuxContainerResources{BlkioWeight: 9}),
		at + "blkio_weight_device[0].Weight:": limits(
			&pouch.LinuxContainerResources{BlkioWeightDevice: []*pouch.WeightDevice{{Path: "/a", Weight: 1001}}}),
		at + "blkio_weight_device[0].path:": limits(
			&pouch.LinuxContainerResources{BlkioWeightDevice: []*pouch.WeightDevice{{Path: "a", Weight: 100}}}),
		at + "blkio_device_read_bps[0].path:": limits(
			&pouch.LinuxContainerResources{BlkioDeviceReadBps: []*pouch.ThrottleDevice{{}}}),
		at + "blkio_device_write_IOps[0].path: conta": limits(
			&pouch.LinuxContainerResources{BlkioDeviceWrite_IOps: []*pouch.ThrottleDevice{{Path: "/a\x00"}}}),
		at + "kernel_memory:":      limits(&pouch.LinuxContainerResources{KernelMemory: -2}),
		at + "memory_reservation:": limits(&pouch.LinuxContainerResources{MemoryReservation: -2}),
		at + "memory_swappiness:": limits(
			&pouch.LinuxContainerResources{MemorySwappiness: &pouch.Int64Value{Value: 101}}),
		at + "ulimits[0]:": limits(
			&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "nofile", Hard: 1, Soft: 2}}}),
		at + "ulimits[1].name:": limits(
			&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "core"}, {Name: "core"}}}),
		"config.net_priority:": func(c *api.ContainerConfig) {
			with(c, &pouch.ContainerConfig{NetPriority: 1 << 32})
		},
		"config.quota_id:": func(c *api.ContainerConfig) {
			with(c, &pouch.ContainerConfig{QuotaId: "5"})
		},
		"config.mounts[0].name:": func(c *api.ContainerConfig) {
			c.Mounts = []*api.Mount{with(&api.Mount{ContainerPath: "/a", HostPath: "/b"}, &pouch.Mount{Name: "v"})}
		},
		`config.annotations["io.alibaba.pouch.resources.pids-limit"]:`: func(c *api.ContainerConfig) {
			c.Annotations = map[string]string{"io.alibaba.pouch.resources.pids-limit": "-2"}
		},
		"config.image: the fields": func(c *api.ContainerConfig) {
			c.Image.ProtoReflect().SetUnknown([]byte{0xa2, 0x06, 2, 0x0a, 9})
		},
	} {
		req := container()
		edit(req.Config)
		_, err := d.v1alpha2.CreateContainer(t.Context(), req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := d.v1alpha2.UpdateContainerResources(t.Context(), &api.UpdateContainerResourcesRequest{ContainerId: "c",
		Linux: with(&api.LinuxContainerResources{}, &pouch.LinuxContainerResources{BlkioWeight: 9})})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "linux.blkio_weight") {
		t.Errorf("%v", err)
	}
}

func TestAnnotationsOfPodsAreHeeded(t *testing.T) {
	d := open(t)
	run := func(handler, value string) error {
		_, err := d.v1alpha2.RunPodSandbox(t.Context(),
			&api.RunPodSandboxRequest{RuntimeHandler: handler, Config: &api.PodSandboxConfig{
				Metadata:    &api.PodSandboxMetadata{Name: "n", Namespace: "ns", Uid: "u"},
				Annotations: map[string]string{"io.kubernetes.runtime": "kata", "io.kubernetes.lxcfs.enabled": value},
			}})
		return err
	}
	if err := run("", "true"); err != nil || d.handler != "kata" || !d.sandbox.LXCFS {
		t.Errorf("%v, %q, %v", err, d.handler, d.sandbox.LXCFS)
	}
	if err := run("runc", "false"); err != nil || d.handler != "runc" || d.sandbox.LXCFS {
		t.Errorf("%v, %q, %v", err, d.handler, d.sandbox.LXCFS)
	}
	if err := run("", "sure"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

func TestPouchContainersCallsReachTheDomain(t *testing.T) {
	d := open(t)
	c, v := pouch.NewRuntimeServiceClient(d.conn), pouch.NewVolumeServiceClient(d.conn)
	for id, want := range map[string]codes.Code{"a": codes.OK, "": codes.InvalidArgument, "a\x00": codes.InvalidArgument,
		"fails": codes.FailedPrecondition} {
		_, start := c.StartPodSandbox(t.Context(), &pouch.StartPodSandboxRequest{PodSandboxId: id})
		_, pause := c.PauseContainer(t.Context(), &pouch.PauseContainerRequest{ContainerId: id})
		_, unpause := c.UnpauseContainer(t.Context(), &pouch.UnpauseContainerRequest{ContainerId: id})
		if status.Code(start) != want || status.Code(pause) != want || status.Code(unpause) != want {
			t.Errorf("%q: %v, %v, %v", id, start, pause, unpause)
		}
	}
	if got := strings.Join(d.called, ","); !strings.Contains(got, "start a,pause a,unpause a") {
		t.Errorf("called %s", got)
	}
	if _, err := v.RemoveVolume(t.Context(), &pouch.RemoveVolumeRequest{VolumeName: "vol"}); err != nil ||
		d.removed != "vol" {
		t.Errorf("%v, %q", err, d.removed)
	}
	if _, err := v.RemoveVolume(t.Context(), &pouch.RemoveVolumeRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// With the check of unknown states taken out of v1's list, SANDBOX_NOTFOUND selects both sandboxes.
func TestNoSandboxIsInTheStateNotFound(t *testing.T) {
	d := open(t)
	for state, want := range map[api.PodSandboxState]string{
		api.PodSandboxState_SANDBOX_READY:    "pod-ready",
		api.PodSandboxState_SANDBOX_NOTREADY: "pod-notready",
		sandboxNotFound:                      "",
	} {
		list, err := d.v1alpha2.ListPodSandbox(t.Context(), &api.ListPodSandboxRequest{Filter: &api.PodSandboxFilter{
			State: &api.PodSandboxStateValue{State: state}}})
		var ids []string
		for _, item := range list.GetItems() {
			ids = append(ids, item.Id)
		}
		if got := strings.Join(ids, ","); err != nil || got != want {
			t.Errorf("state %d selects %q, want %q (%v)", state, got, want, err)
		}
	}
	for name, c := range map[string]client{"v1": d.v1, "v1alpha2": d.v1alpha2} {
		for _, state := range []api.PodSandboxState{2, 99, 100, 101, -1} {
			if name == "v1alpha2" && state == sandboxNotFound {
				continue
			}
			_, err := c.ListPodSandbox(t.Context(), &api.ListPodSandboxRequest{Filter: &api.PodSandboxFilter{
				State: &api.PodSandboxStateValue{State: state}}})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "filter.state.state") {
				t.Errorf("%s, state %d: %v", name, state, err)
			}
		}
	}
}

// Metrics and the log tell which API was used.
func TestACallIsKnownByTheNameThatTheClientUsed(t *testing.T) {
	var seen []string
	desc := renamed(api.RuntimeService_ServiceDesc, "runtime.v1alpha2.RuntimeService")
	for _, m := range desc.Methods {
		if m.MethodName != "Version" {
			continue
		}
		server := criv1.NewServices(criv1.Deps{Version: "0.1.0"}, dialect{}).Runtime
		got, err := m.Handler(server, t.Context(), func(any) error { return nil },
			func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				seen = append(seen, info.FullMethod)
				return next(ctx, req)
			})
		if err != nil || got.(*api.VersionResponse).RuntimeApiVersion != "v1alpha2" {
			t.Errorf("%v, %v", got, err)
		}
	}
	if len(seen) != 1 || seen[0] != "/runtime.v1alpha2.RuntimeService/Version" {
		t.Errorf("%v", seen)
	}
}
