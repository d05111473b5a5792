package v1alpha1

import (
	"context"
	"errors"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/cri"
	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/pod"
)

// The domain has what the API calls.
var (
	_ Runtime = (*pod.Manager)(nil)
	_ interface {
		Get(context.Context, string) (*model.Image, error)
		List(context.Context) ([]*model.Image, error)
		Remove(context.Context, string) error
	} = (*image.Store)(nil)
)

// recorder is a domain that keeps what it was last asked. Calls that it does not have panic.
type recorder struct {
	Runtime
	Images
	sandbox   *model.SandboxConfig
	container *model.ContainerConfig
	spec      model.ImageSpec
	auth      *model.Auth
	timeout   time.Duration
	calls     int

	sandboxes  []*model.SandboxStatus
	containers []*model.ContainerStatus
}

func (r *recorder) RunSandbox(_ context.Context, cfg *model.SandboxConfig, _ string) (string, error) {
	r.calls++
	r.sandbox = cfg
	return "pod1", nil
}

func (r *recorder) CreateContainer(_ context.Context, _ string, cfg *model.ContainerConfig) (string, error) {
	r.calls++
	r.container = cfg
	return "container1", nil
}

func (r *recorder) StopContainer(_ context.Context, _ string, timeout time.Duration) error {
	r.calls++
	r.timeout = timeout
	return nil
}

func (r *recorder) PullImage(_ context.Context, spec model.ImageSpec, auth *model.Auth) (*model.Image, error) {
	r.calls++
	r.spec, r.auth = spec, auth
	return &model.Image{}, nil
}

func (r *recorder) SandboxStatus(context.Context, string) (*model.SandboxStatus, error) {
	return r.sandboxes[0], nil
}

func (r *recorder) ContainerStatus(context.Context, string) (*model.ContainerStatus, error) {
	return r.containers[0], nil
}

func (r *recorder) ListContainers(context.Context, model.ContainerFilter) ([]*model.ContainerStatus, error) {
	return r.containers, nil
}

// Exec ends with 3 once its input has ended, and repeats that as its output.
func (r *recorder) Exec(ctx context.Context, _ string, opts pod.ExecOptions) (int, error) {
	r.calls++
	if _, err := io.Copy(opts.Stdout, opts.Stdin); err != nil {
		return 0, err
	}
	return 3, nil
}

type fixture struct {
	api.RuntimeServiceClient
	api.ImageServiceClient
	conn *grpc.ClientConn
	rec  *recorder
}

func open(t *testing.T) *fixture {
	t.Helper()
	server, err := cri.NewServer(cri.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	Register(server, Deps{Runtime: rec, Images: rec, Version: "1.2.3"})
	address := "unix://" + filepath.Join(t.TempDir(), "s")
	l, err := cri.Listen(address, -1)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &fixture{api.NewRuntimeServiceClient(conn), api.NewImageServiceClient(conn), conn, rec}
}

func goodSandbox() *api.PodSandboxConfig {
	return &api.PodSandboxConfig{
		Name: proto.String("a_pod"), Hostname: proto.String("h"), LogDirectory: proto.String("/logs"),
		DnsOptions: &api.DNSOption{Servers: []string{"10.0.0.1"}, Searches: []string{"", "s"}},
		PortMappings: []*api.PortMapping{{Name: proto.String("n"), Protocol: api.Protocol_UDP.Enum(),
			ContainerPort: proto.Int32(53), HostPort: proto.Int32(5353), HostIp: proto.String("127.0.0.1")}},
		Resources: &api.PodSandboxResources{
			Cpu:    &api.ResourceRequirements{Limits: proto.Float64(1.5)},
			Memory: &api.ResourceRequirements{Limits: proto.Float64(1 << 30), Requests: proto.Float64(1 << 20)},
		},
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Linux: &api.LinuxPodSandboxConfig{CgroupParent: proto.String("/parent"),
			NamespaceOptions: &api.NamespaceOption{HostNetwork: proto.Bool(true)}},
	}
}

func goodContainer() *api.ContainerConfig {
	return &api.ContainerConfig{
		Name: proto.String("a_container"), Image: &api.ImageSpec{Image: proto.String("i")},
		Command: []string{"c"}, Args: []string{"a"}, WorkingDir: proto.String("/w"),
		Envs: []*api.KeyValue{{Key: proto.String("K"), Value: proto.String("V")}},
		Mounts: []*api.Mount{{Name: proto.String("m"), ContainerPath: proto.String("/in"), HostPath: proto.String("/on"),
			Readonly: proto.Bool(true), SelinuxRelabel: proto.Bool(true)}},
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Privileged: proto.Bool(true), ReadonlyRootfs: proto.Bool(true), LogPath: proto.String("l.log"),
		Stdin: proto.Bool(true), StdinOnce: proto.Bool(true), Tty: proto.Bool(true),
		Linux: &api.LinuxContainerConfig{
			Resources: &api.LinuxContainerResources{CpuPeriod: proto.Int64(100000), CpuQuota: proto.Int64(-1),
				CpuShares: proto.Int64(2), MemoryLimitInBytes: proto.Int64(5), OomScoreAdj: proto.Int64(-1000)},
			Capabilities: &api.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
			SelinuxOptions: &api.SELinuxOption{User: proto.String("u"), Role: proto.String("r"), Type: proto.String("t"),
				Level: proto.String("l")},
			User: &api.LinuxUser{Uid: proto.Int64(0), Gid: proto.Int64(0), AdditionalGids: []int64{7}},
		},
	}
}

// TestANamedVolumeHasItsDirectoryInTheStatus. Seen to fail with the mounts of the configuration.
func TestANamedVolumeHasItsDirectoryInTheStatus(t *testing.T) {
	mounts := []model.Mount{{ContainerPath: "/a", HostPath: "/b"}, {ContainerPath: "/c", Volume: "data"}}
	st := fromContainerStatus(&model.ContainerStatus{
		VolumePaths: []string{"/volumes/data"}, Config: &model.ContainerConfig{Mounts: mounts},
	})
	if m := st.Mounts; len(m) != 2 || m[0].GetHostPath() != "/b" || m[1].GetHostPath() != "/volumes/data" ||
		m[1].GetName() != "data" {
		t.Errorf("mounts %v", m)
	}
}

// TestLimitsOfAPodHaveTheNamesOfTheRequest: a pod of 2016 has cores and bytes, as limits and requests.
func TestLimitsOfAPodHaveTheNamesOfTheRequest(t *testing.T) {
	for limit, want := range map[model.Field]string{
		model.LimitCPUQuota:          "config.resources.cpu.limits: it is wrong",
		model.LimitCPUShares:         "config.resources.cpu.requests: it is wrong",
		model.LimitMemory:            "config.resources.memory.limits: it is wrong",
		model.LimitMemoryReservation: "config.resources.memory.requests: it is wrong",
	} {
		err := model.FieldSandboxResources.Within(limit.Wrong(errors.New("it is wrong")))
		if got := FieldNames().Text(err.Error(), err); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAPodOf2016IsTranslatedWhole(t *testing.T) {
	d := open(t)
	if r, err := d.CreatePodSandbox(t.Context(), &api.CreatePodSandboxRequest{Config: goodSandbox()}); err != nil ||
		r.GetPodSandboxId() != "pod1" {
		t.Fatalf("%v, %v", r, err)
	}
	want := &model.SandboxConfig{
		Name:     "a_pod",
		Metadata: model.SandboxMetadata{Name: "a_pod", Namespace: "default", UID: d.rec.sandbox.Metadata.UID},
		Hostname: "h", LogDirectory: "/logs",
		DNS:          &model.DNS{Servers: []string{"10.0.0.1"}, Searches: []string{"s"}},
		PortMappings: []model.PortMapping{{Protocol: model.UDP, ContainerPort: 53, HostPort: 5353, HostIP: "127.0.0.1"}},
		Labels:       map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		CgroupParent: "/parent", OwnCgroup: true,
		Security: model.SandboxSecurity{Privileged: true, Namespaces: model.NamespaceOptions{
			Network: model.NamespaceNode, PID: model.NamespaceContainer, IPC: model.NamespacePod}},
		Resources: &model.Resources{CPUPeriod: 100000, CPUQuota: 150000, CPUShares: 1536, MemoryLimit: 1 << 30,
			MemoryReservation: 1 << 20},
	}
	if !reflect.DeepEqual(d.rec.sandbox, want) {
		t.Errorf("got\n%+v, want\n%+v", d.rec.sandbox, want)
	}
	uid := want.Metadata.UID
	if len(uid) != 36 {
		t.Errorf("uid %q", uid)
	}
	// A name alone will do, and pods of one name are of one UID.
	if _, err := d.CreatePodSandbox(t.Context(),
		&api.CreatePodSandboxRequest{Config: &api.PodSandboxConfig{Name: proto.String("a_pod")}}); err != nil {
		t.Fatal(err)
	}
	if got := d.rec.sandbox; got.Metadata.UID != uid || got.DNS != nil || got.Resources != nil || got.OwnCgroup {
		t.Errorf("%+v", got)
	}
}

func TestAContainerOf2016IsTranslatedWhole(t *testing.T) {
	d := open(t)
	if _, err := d.CreateContainer(t.Context(), &api.CreateContainerRequest{PodSandboxId: proto.String("p"),
		Config: goodContainer(), SandboxConfig: goodSandbox()}); err != nil {
		t.Fatal(err)
	}
	want := &model.ContainerConfig{
		Name: "a_container", Metadata: model.ContainerMetadata{Name: "a_container"}, Image: model.ImageSpec{Image: "i"},
		Command: []string{"c"}, Args: []string{"a"}, WorkingDir: "/w", Env: []model.EnvVar{{Key: "K", Value: "V"}},
		Mounts: []model.Mount{{Name: "m", ContainerPath: "/in", HostPath: "/on", Readonly: true, SELinuxRelabel: true,
			Propagation: model.PropagationPrivate}},
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		LogPath: "l.log", Stdin: true, StdinOnce: true, TTY: true,
		Resources: &model.Resources{CPUPeriod: 100000, CPUQuota: -1, CPUShares: 2, MemoryLimit: 5, OOMScoreAdj: -1000},
		Security: model.ContainerSecurity{
			Privileged: true, ReadonlyRootfs: true,
			Capabilities: model.Capabilities{Add: []string{"NET_ADMIN"}, Drop: []string{"ALL"}},
			SELinux:      &model.SELinux{User: "u", Role: "r", Type: "t", Level: "l"},
			RunAsUser:    proto.Int64(0), RunAsGroup: proto.Int64(0), SupplementalGroups: []int64{7},
		},
	}
	if !reflect.DeepEqual(d.rec.container, want) {
		t.Errorf("got\n%+v, want\n%+v", d.rec.container, want)
	}
	if _, err := d.StopContainer(t.Context(), &api.StopContainerRequest{ContainerId: proto.String("c"),
		Timeout: proto.Int64(7)}); err != nil || d.rec.timeout != 7*time.Second {
		t.Errorf("%v, %v", d.rec.timeout, err)
	}
}

func TestCredentialsOf2016GoToTheStore(t *testing.T) {
	d := open(t)
	_, err := d.PullImage(t.Context(), &api.PullImageRequest{Image: &api.ImageSpec{Image: proto.String("i")},
		Auth: &api.AuthConfig{
			Username: proto.String("u"), Password: proto.String("p"), Auth: proto.String("a"), ServerAddress: proto.String("s"),
			IdentityToken: proto.String("it"), RegistryToken: proto.String("rt")}})
	want := &model.Auth{Username: "u", Password: "p", Auth: "a", ServerAddress: "s", IdentityToken: "it",
		RegistryToken: "rt"}
	if err != nil || !reflect.DeepEqual(d.rec.auth, want) || d.rec.spec.Image != "i" {
		t.Errorf("%v, %+v", err, d.rec.auth)
	}
	if _, err := d.PullImage(t.Context(),
		&api.PullImageRequest{Image: &api.ImageSpec{Image: proto.String("i")}}); err != nil || d.rec.auth != nil {
		t.Errorf("%v, %+v", err, d.rec.auth)
	}
}

// Each of these is refused, with the path of the field, before the domain hears of it.
func TestWhatAPodOf2016CannotBeIsRefused(t *testing.T) {
	d := open(t)
	for field, change := range map[string]func(*api.PodSandboxConfig){
		"config.name: is required":         func(c *api.PodSandboxConfig) { c.Name = nil },
		`config.name: "a/b"`:               func(c *api.PodSandboxConfig) { c.Name = proto.String("a/b") },
		"config.hostname: ":                func(c *api.PodSandboxConfig) { c.Hostname = proto.String("a b") },
		"config.hostname: is not UTF-8":    func(c *api.PodSandboxConfig) { c.Hostname = proto.String("\xff") },
		"config.log_directory: ":           func(c *api.PodSandboxConfig) { c.LogDirectory = proto.String("logs") },
		`config.log_directory: "/a/../b"`:  func(c *api.PodSandboxConfig) { c.LogDirectory = proto.String("/a/../b") },
		"config.dns_options.servers[0]: ":  func(c *api.PodSandboxConfig) { c.DnsOptions.Servers[0] = "one" },
		"config.dns_options.searches[0]: ": func(c *api.PodSandboxConfig) { c.DnsOptions.Searches[0] = " " },
		"config.port_mappings[0].protocol: ": func(c *api.PodSandboxConfig) {
			c.PortMappings[0].Protocol = api.Protocol(7).Enum()
		},
		"config.port_mappings[0].container_po": func(c *api.PodSandboxConfig) { c.PortMappings[0].ContainerPort = nil },
		"config.port_mappings[0].host_port: ": func(c *api.PodSandboxConfig) {
			c.PortMappings[0].HostPort = proto.Int32(70000)
		},
		"config.port_mappings[0].host_ip: ": func(c *api.PodSandboxConfig) {
			c.PortMappings[0].HostIp = proto.String("x")
		},
		"config.labels: has an empty key":      func(c *api.PodSandboxConfig) { c.Labels[""] = "x" },
		"config.annotations: has an empty key": func(c *api.PodSandboxConfig) { c.Annotations[""] = "x" },
		"config.linux.cgroup_parent: ": func(c *api.PodSandboxConfig) {
			c.Linux.CgroupParent = proto.String("/../x")
		},
		"config.resources.cpu.limits: -1": func(c *api.PodSandboxConfig) { c.Resources.Cpu.Limits = proto.Float64(-1) },
		"config.resources.cpu.limits: NaN": func(c *api.PodSandboxConfig) {
			c.Resources.Cpu.Limits = proto.Float64(math.NaN())
		},
		"config.resources.cpu.limits: +Inf": func(c *api.PodSandboxConfig) {
			c.Resources.Cpu.Limits = proto.Float64(math.Inf(1))
		},
		"config.resources.cpu.limits: 0.001": func(c *api.PodSandboxConfig) {
			c.Resources.Cpu.Limits = proto.Float64(0.001)
		},
		"config.resources.cpu.requests: 2 is": func(c *api.PodSandboxConfig) { c.Resources.Cpu.Requests = proto.Float64(2) },
		"config.resources.memory.limits: 1.5": func(c *api.PodSandboxConfig) {
			c.Resources.Memory = &api.ResourceRequirements{Limits: proto.Float64(1.5)}
		},
		"config.resources.memory.requests: -2": func(c *api.PodSandboxConfig) {
			c.Resources.Memory.Requests = proto.Float64(-2)
		},
	} {
		c := goodSandbox()
		change(c)
		_, err := d.CreatePodSandbox(t.Context(), &api.CreatePodSandboxRequest{Config: c})
		refused(t, d, err, field)
	}
	_, err := d.CreatePodSandbox(t.Context(), &api.CreatePodSandboxRequest{})
	refused(t, d, err, "config: is required")
}

func TestWhatAContainerOf2016CannotBeIsRefused(t *testing.T) {
	d := open(t)
	for field, change := range map[string]func(*api.ContainerConfig){
		"config.name: is required":               func(c *api.ContainerConfig) { c.Name = nil },
		"config.image.image: is required":        func(c *api.ContainerConfig) { c.Image = nil },
		"config.command[0]: contains a NUL byte": func(c *api.ContainerConfig) { c.Command[0] = "\x00" },
		"config.args[0]: is not UTF-8":           func(c *api.ContainerConfig) { c.Args[0] = "\xc3" },
		"config.working_dir: ":                   func(c *api.ContainerConfig) { c.WorkingDir = proto.String("w") },
		"config.envs[0].key: ":                   func(c *api.ContainerConfig) { c.Envs[0].Key = proto.String("A=B") },
		"config.mounts[0].container_path: ": func(c *api.ContainerConfig) {
			c.Mounts[0].ContainerPath = proto.String("in")
		},
		`config.mounts[0].container_path: "/"`: func(c *api.ContainerConfig) {
			c.Mounts[0].ContainerPath = proto.String("/")
		},
		"config.mounts[0].host_path: is required": func(c *api.ContainerConfig) { c.Mounts[0].HostPath = nil },
		"config.labels: has":                      func(c *api.ContainerConfig) { c.Labels[""] = "" },
		"config.annotations: has":                 func(c *api.ContainerConfig) { c.Annotations[""] = "" },
		"config.log_path: ":                       func(c *api.ContainerConfig) { c.LogPath = proto.String("../l") },
		"config.linux.resources.cpu_period: ": func(c *api.ContainerConfig) {
			c.Linux.Resources.CpuPeriod = proto.Int64(5)
		},
		"config.linux.resources.cpu_quota: ": func(c *api.ContainerConfig) {
			c.Linux.Resources.CpuQuota = proto.Int64(5)
		},
		"config.linux.resources.cpu_shares: ": func(c *api.ContainerConfig) {
			c.Linux.Resources.CpuShares = proto.Int64(1)
		},
		"config.linux.resources.memory_limit_in_by": func(c *api.ContainerConfig) {
			c.Linux.Resources.MemoryLimitInBytes = proto.Int64(-2)
		},
		"config.linux.resources.oom_score_adj: ": func(c *api.ContainerConfig) {
			c.Linux.Resources.OomScoreAdj = proto.Int64(1001)
		},
		"config.linux.capabilities.add_capabilities": func(c *api.ContainerConfig) {
			c.Linux.Capabilities.AddCapabilities[0] = "a b"
		},
		"config.linux.capabilities.drop_capabiliti": func(c *api.ContainerConfig) {
			c.Linux.Capabilities.DropCapabilities[0] = ""
		},
		"config.linux.user.uid: ": func(c *api.ContainerConfig) { c.Linux.User.Uid = proto.Int64(-1) },
		"config.linux.user.gid: ": func(c *api.ContainerConfig) {
			c.Linux.User.Gid = proto.Int64(1 << 32)
		},
		"config.linux.user.gid: needs uid":       func(c *api.ContainerConfig) { c.Linux.User.Uid = nil },
		"config.linux.user.additional_gids[0]: ": func(c *api.ContainerConfig) { c.Linux.User.AdditionalGids[0] = -1 },
	} {
		c := goodContainer()
		change(c)
		_, err := d.CreateContainer(t.Context(), &api.CreateContainerRequest{PodSandboxId: proto.String("p"), Config: c})
		refused(t, d, err, field)
	}
	ctx := t.Context()
	_, err := d.CreateContainer(ctx, &api.CreateContainerRequest{PodSandboxId: proto.String("p")})
	refused(t, d, err, "config: is required")
	_, err = d.CreateContainer(ctx, &api.CreateContainerRequest{PodSandboxId: proto.String("p"), Config: goodContainer(),
		SandboxConfig: &api.PodSandboxConfig{Name: proto.String("a"), Hostname: proto.String("a b")}})
	refused(t, d, err, "sandbox_config.hostname: ")
	_, err = d.StopContainer(ctx, &api.StopContainerRequest{ContainerId: proto.String("c"), Timeout: proto.Int64(-1)})
	refused(t, d, err, "timeout: -1 is negative")
	_, err = d.ListContainers(ctx,
		&api.ListContainersRequest{Filter: &api.ContainerFilter{State: api.ContainerState(9).Enum()}})
	refused(t, d, err, "filter.state: ")
	_, err = d.ListPodSandbox(ctx,
		&api.ListPodSandboxRequest{Filter: &api.PodSandboxFilter{State: api.PodSandBoxState(9).Enum()}})
	refused(t, d, err, "filter.state: ")
	_, err = d.Version(ctx, &api.VersionRequest{Version: proto.String("\x00")})
	refused(t, d, err, "version: ")
}

func TestCallsOf2016WithoutWhatTheyNeedAreRefused(t *testing.T) {
	d := open(t)
	ctx := t.Context()
	for field, call := range map[string][]func() error{
		"pod_sandbox_id: is required": {
			func() error { _, err := d.StopPodSandbox(ctx, &api.StopPodSandboxRequest{}); return err },
			func() error { _, err := d.DeletePodSandbox(ctx, &api.DeletePodSandboxRequest{}); return err },
			func() error { _, err := d.PodSandboxStatus(ctx, &api.PodSandboxStatusRequest{}); return err },
			func() error {
				_, err := d.CreateContainer(ctx, &api.CreateContainerRequest{Config: goodContainer()})
				return err
			},
		},
		"container_id: is required": {
			func() error { _, err := d.StartContainer(ctx, &api.StartContainerRequest{}); return err },
			func() error { _, err := d.StopContainer(ctx, &api.StopContainerRequest{}); return err },
			func() error { _, err := d.RemoveContainer(ctx, &api.RemoveContainerRequest{}); return err },
			func() error { _, err := d.ContainerStatus(ctx, &api.ContainerStatusRequest{}); return err },
		},
		"image.image: is required": {
			func() error { _, err := d.ImageStatus(ctx, &api.ImageStatusRequest{}); return err },
			func() error { _, err := d.PullImage(ctx, &api.PullImageRequest{}); return err },
			func() error { _, err := d.RemoveImage(ctx, &api.RemoveImageRequest{}); return err },
		},
	} {
		for _, c := range call {
			refused(t, d, c(), field)
		}
	}
}

func refused(t *testing.T, d *fixture, err error, says string) {
	t.Helper()
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), says) {
		t.Errorf("%v, want InvalidArgument with %q", err, says)
	}
	if d.rec.calls > 0 {
		t.Errorf("%s: the domain was asked", says)
		d.rec.calls = 0
	}
}

func TestAStatusOf2016SaysWhatItHasWordsFor(t *testing.T) {
	d := open(t)
	d.rec.sandboxes = []*model.SandboxStatus{{ID: "p",
		Config: &model.SandboxConfig{Metadata: model.SandboxMetadata{Name: "n", Namespace: "s", UID: "u", Attempt: 2}},
		State:  model.SandboxReady, IPs: []string{"10.0.0.1", "fd00::1"}, NetNS: "/ns"}}
	p, err := d.PodSandboxStatus(t.Context(), &api.PodSandboxStatusRequest{PodSandboxId: proto.String("p")})
	if err != nil || p.Status.GetName() != "s/n/u/2" || p.Status.GetNetwork().GetIp() != "10.0.0.1" ||
		p.Status.GetLinux().GetNamespaces().GetNetwork() != "/ns" {
		t.Errorf("%v, %v", p, err)
	}
	cfg := &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: "c"},
		Image: model.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "busybox"}}
	for state, want := range map[model.ContainerState]api.ContainerState{
		model.ContainerCreated: api.ContainerState_CREATED, model.ContainerRunning: api.ContainerState_RUNNING,
		model.ContainerPaused: api.ContainerState_RUNNING, model.ContainerExited: api.ContainerState_EXITED,
		model.ContainerUnknown: api.ContainerState_UNKNOWN,
	} {
		d.rec.containers = []*model.ContainerStatus{{ID: "c", Config: cfg, State: state, ExitCode: 127, Reason: "StartError",
			Message: "no such file"}}
		c, err := d.ContainerStatus(t.Context(), &api.ContainerStatusRequest{ContainerId: proto.String("c")})
		if err != nil || c.Status.GetState() != want || c.Status.GetReason() != "StartError: no such file" ||
			c.Status.GetImage().GetImage() != "busybox" ||
			(c.Status.ExitCode != nil) != (state == model.ContainerExited) {
			t.Errorf("%s: %v, %v", state, c, err)
		}
		l, err := d.ListContainers(t.Context(), &api.ListContainersRequest{Filter: &api.ContainerFilter{State: &want}})
		if err != nil || len(l.Containers) != 1 {
			t.Errorf("%s: %v, %v", state, l, err)
		}
	}
}
