//lint:file-ignore SA1019 deprecated fields are honoured, and tested

package v1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/cri/request"
	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/pod"
	"berth/internal/stream"
)

// The domain has what the API calls.
var (
	_ Runtime = (*pod.Manager)(nil)
	_ Images  = (*image.Store)(nil)
	_ Streams = (*stream.Server)(nil)
)

// fixture is the API on a socket, with a recorder behind it.
type fixture struct {
	rec *recorder
	api.RuntimeServiceClient
	api.ImageServiceClient
	conn *grpc.ClientConn
	log  *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// take returns what was written since the last take.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

func open(t testing.TB, level slog.Level) *fixture {
	t.Helper()
	d := &fixture{rec: &recorder{}, log: &lockedBuffer{}}
	log := slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: level}))
	server, err := cri.NewServer(cri.ServerConfig{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	Register(server, Deps{
		Runtime: d.rec,
		Images:  recordedImages{d.rec},
		Streams: recordedStreams{d.rec},
		Version: "0.1.0",
		Info:    func(context.Context) map[string]any { return map[string]any{"config": map[string]int{"a": 1}} },
		Log:     log,
	})
	address := "unix://" + filepath.Join(t.TempDir(), "s")
	l, err := cri.Listen(address, -1)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	d.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		t.Fatal(err)
	}
	d.RuntimeServiceClient = api.NewRuntimeServiceClient(d.conn)
	d.ImageServiceClient = api.NewImageServiceClient(d.conn)
	t.Cleanup(func() {
		d.conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return d
}

func sandboxRequest() *api.RunPodSandboxRequest {
	return &api.RunPodSandboxRequest{
		RuntimeHandler: "crun",
		Config: &api.PodSandboxConfig{
			Metadata:     &api.PodSandboxMetadata{Name: "web_1", Uid: "u-1", Namespace: "default", Attempt: 2},
			Hostname:     "web",
			LogDirectory: "/var/log/pods/default_web_u-1",
			DnsConfig: &api.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"},
				Options: []string{"ndots:5"}},
			PortMappings: []*api.PortMapping{{Protocol: api.Protocol_UDP, ContainerPort: 53, HostPort: 5353,
				HostIp: "127.0.0.1"}},
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{"c": "d"},
			Linux: &api.LinuxPodSandboxConfig{
				CgroupParent: "/kubepods/pod1",
				Sysctls:      map[string]string{"net.ipv4.ip_forward": "1"},
				Overhead:     &api.LinuxContainerResources{CpuShares: 10},
				Resources:    &api.LinuxContainerResources{MemoryLimitInBytes: 1 << 20},
				SecurityContext: &api.LinuxSandboxSecurityContext{
					NamespaceOptions: &api.NamespaceOption{
						Network: api.NamespaceMode_NODE,
						Pid:     api.NamespaceMode_CONTAINER,
						UsernsOptions: &api.UserNamespace{
							Uids: []*api.IDMapping{{HostId: 100000, Length: 65536}},
							Gids: []*api.IDMapping{{HostId: 100000, Length: 65536}},
						},
					},
					SelinuxOptions:           &api.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "l"},
					RunAsUser:                &api.Int64Value{Value: 5},
					RunAsGroup:               &api.Int64Value{Value: 6},
					ReadonlyRootfs:           true,
					SupplementalGroups:       []int64{7},
					SupplementalGroupsPolicy: api.SupplementalGroupsPolicy_Strict,
					Privileged:               true,
					Seccomp:                  &api.SecurityProfile{ProfileType: api.SecurityProfile_RuntimeDefault},
					Apparmor: &api.SecurityProfile{ProfileType: api.SecurityProfile_Localhost,
						LocalhostRef: "localhost/p"},
				},
			},
		},
	}
}

func ptr[T any](v T) *T { return &v }

func TestASandboxIsTranslatedWhole(t *testing.T) {
	d := open(t, slog.LevelWarn)
	resp, err := d.RunPodSandbox(t.Context(), sandboxRequest())
	if err != nil {
		t.Fatal(err)
	}
	if resp.PodSandboxId != "pod1" {
		t.Errorf("id %q", resp.PodSandboxId)
	}
	want := &model.SandboxConfig{
		Metadata:     model.SandboxMetadata{Name: "web_1", UID: "u-1", Namespace: "default", Attempt: 2},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/default_web_u-1",
		DNS:          &model.DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}},
		PortMappings: []model.PortMapping{{Protocol: model.UDP, ContainerPort: 53, HostPort: 5353, HostIP: "127.0.0.1"}},
		Labels:       map[string]string{"a": "b"},
		Annotations:  map[string]string{"c": "d"},
		CgroupParent: "/kubepods/pod1",
		Sysctls:      map[string]string{"net.ipv4.ip_forward": "1"},
		Overhead:     &model.Resources{CPUShares: 10},
		Resources:    &model.Resources{MemoryLimit: 1 << 20},
		Security: model.SandboxSecurity{
			Namespaces: model.NamespaceOptions{
				Network: model.NamespaceNode, PID: model.NamespaceContainer, IPC: model.NamespacePod,
				User: &model.UserNamespace{
					Mode: model.NamespacePod,
					UIDs: []model.IDMapping{{HostID: 100000, Length: 65536}},
					GIDs: []model.IDMapping{{HostID: 100000, Length: 65536}},
				},
			},
			SELinux:                  &model.SELinux{User: "u", Role: "r", Type: "t", Level: "l"},
			RunAsUser:                ptr[int64](5),
			RunAsGroup:               ptr[int64](6),
			ReadonlyRootfs:           true,
			SupplementalGroups:       []int64{7},
			SupplementalGroupsStrict: true,
			Privileged:               true,
			Seccomp:                  &model.SecurityProfile{Type: model.ProfileRuntimeDefault},
			AppArmor:                 &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "p"},
		},
	}
	args := d.rec.last("RunSandbox")
	if !reflect.DeepEqual(args[0], want) {
		t.Errorf("translated to\n%+v, want\n%+v", args[0], want)
	}
	if args[1] != "crun" {
		t.Errorf("handler %v", args[1])
	}
}

func containerRequest() *api.CreateContainerRequest {
	return &api.CreateContainerRequest{
		PodSandboxId:  "pod1",
		SandboxConfig: sandboxRequest().Config,
		Config: &api.ContainerConfig{
			Metadata: &api.ContainerMetadata{Name: "app", Attempt: 1},
			Image: &api.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "busybox",
				Annotations: map[string]string{"x": "y"}},
			Command:    []string{"sh"},
			Args:       []string{"-c", ""},
			WorkingDir: "/w",
			Envs:       []*api.KeyValue{{Key: "A", Value: []byte("b=c\xff")}},
			Mounts: []*api.Mount{
				{ContainerPath: "/data", HostPath: "/srv", Readonly: true, RecursiveReadOnly: true, SelinuxRelabel: true,
					MountOptions: []string{"nosuid", "noexec", "nosuid"},
					UidMappings:  []*api.IDMapping{{HostId: 1, ContainerId: 2, Length: 3}}},
				{ContainerPath: "/shared", HostPath: "/mnt", Propagation: api.MountPropagation_PROPAGATION_BIDIRECTIONAL},
				{ContainerPath: "/image", Image: &api.ImageSpec{Image: "sha256:2"}, ImageSubPath: "a/b", Readonly: true},
			},
			Devices:     []*api.Device{{ContainerPath: "/dev/x", HostPath: "/dev/y", Permissions: "rw"}},
			CDIDevices:  []*api.CDIDevice{{Name: "vendor.com/gpu=0"}},
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{"c": "d"},
			LogPath:     "app/0.log",
			Stdin:       true,
			StdinOnce:   true,
			Tty:         true,
			StopSignal:  api.Signal_SIGNAL_SIGUSR1,
			Linux: &api.LinuxContainerConfig{
				Resources: &api.LinuxContainerResources{
					CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 1 << 30,
					MemorySwapLimitInBytes: 1 << 31, OomScoreAdj: 100, CpusetCpus: "0-1", CpusetMems: "0",
					HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 4}},
					Unified:        map[string]string{"memory.high": "1"},
				},
				SecurityContext: &api.LinuxContainerSecurityContext{
					Capabilities: &api.Capability{
						AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"},
						AddAmbientCapabilities: []string{"CAP_CHOWN"},
					},
					NamespaceOptions:   &api.NamespaceOption{Pid: api.NamespaceMode_TARGET, TargetId: "container0"},
					RunAsUsername:      "www",
					RunAsGroup:         &api.Int64Value{Value: 8},
					SupplementalGroups: []int64{1},
					NoNewPrivs:         true,
					MaskedPaths:        []string{"/proc/kcore"},
					ReadonlyPaths:      []string{"/proc/sys"},
					SeccompProfilePath: "localhost//etc/p.json",
					ApparmorProfile:    "unconfined",
				},
			},
		},
	}
}

func TestAContainerIsTranslatedWhole(t *testing.T) {
	d := open(t, slog.LevelWarn)
	resp, err := d.CreateContainer(t.Context(), containerRequest())
	if err != nil {
		t.Fatal(err)
	}
	if resp.ContainerId != "container1" {
		t.Errorf("id %q", resp.ContainerId)
	}
	want := &model.ContainerConfig{
		Metadata: model.ContainerMetadata{Name: "app", Attempt: 1},
		Image: model.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "busybox",
			Annotations: map[string]string{"x": "y"}},
		Command:    []string{"sh"},
		Args:       []string{"-c", ""},
		WorkingDir: "/w",
		Env:        []model.EnvVar{{Key: "A", Value: "b=c\xff"}},
		Mounts: []model.Mount{
			{ContainerPath: "/data", HostPath: "/srv", Readonly: true, RecursiveReadOnly: true, SELinuxRelabel: true,
				Options:     []string{"noexec", "nosuid"},
				Propagation: model.PropagationPrivate, UIDMappings: []model.IDMapping{{HostID: 1, ContainerID: 2, Length: 3}}},
			{ContainerPath: "/shared", HostPath: "/mnt", Propagation: model.PropagationBidirectional},
			{ContainerPath: "/image", Image: &model.ImageSpec{Image: "sha256:2"}, ImageSubPath: "a/b", Readonly: true,
				Propagation: model.PropagationPrivate},
		},
		Devices:     []model.Device{{ContainerPath: "/dev/x", HostPath: "/dev/y", Permissions: "rw"}},
		CDIDevices:  []string{"vendor.com/gpu=0"},
		Labels:      map[string]string{"a": "b"},
		Annotations: map[string]string{"c": "d"},
		LogPath:     "app/0.log",
		Stdin:       true,
		StdinOnce:   true,
		TTY:         true,
		StopSignal:  syscall.SIGUSR1,
		Resources: &model.Resources{
			CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 512, MemoryLimit: 1 << 30, MemorySwap: 1 << 31, OOMScoreAdj: 100,
			CPUSetCPUs: "0-1", CPUSetMems: "0", HugepageLimit: []model.HugepageLimit{{PageSize: "2MB", Limit: 4}},
			Unified: map[string]string{"memory.high": "1"},
		},
		Security: model.ContainerSecurity{
			Capabilities: model.Capabilities{Add: []string{"NET_ADMIN"}, Drop: []string{"ALL"},
				AddAmbient: []string{"CAP_CHOWN"}},
			Namespaces: model.NamespaceOptions{Network: model.NamespacePod, PID: model.NamespaceTarget, IPC: model.NamespacePod,
				TargetID: "container0"},
			RunAsUsername:      "www",
			RunAsGroup:         ptr[int64](8),
			SupplementalGroups: []int64{1},
			NoNewPrivs:         true,
			MaskedPaths:        []string{"/proc/kcore"},
			ReadonlyPaths:      []string{"/proc/sys"},
			Seccomp:            &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "/etc/p.json"},
			AppArmor:           &model.SecurityProfile{Type: model.ProfileUnconfined},
		},
		PodPrivileged: true, // the pod's configuration says so
	}
	args := d.rec.last("CreateContainer")
	if args[0] != "pod1" || !reflect.DeepEqual(args[1], want) {
		t.Errorf("translated to\n%+v, want\n%+v", args[1], want)
	}
}

// Each of these is refused, with the path of the field, before the domain hears of it.
func TestWhatTheInterfaceDoesNotAllowIsRefused(t *testing.T) {
	type pods = func(*api.PodSandboxConfig)
	type containers = func(*api.ContainerConfig)
	security := func(f func(*api.LinuxContainerSecurityContext)) containers {
		return func(c *api.ContainerConfig) { f(c.Linux.SecurityContext) }
	}
	podSecurity := func(f func(*api.LinuxSandboxSecurityContext)) pods {
		return func(c *api.PodSandboxConfig) { f(c.Linux.SecurityContext) }
	}
	resources := func(f func(*api.LinuxContainerResources)) containers {
		return func(c *api.ContainerConfig) { f(c.Linux.Resources) }
	}
	mount := func(f func(*api.Mount)) containers { return func(c *api.ContainerConfig) { f(c.Mounts[0]) } }

	sandboxes := map[string]struct {
		change pods
		path   string
	}{
		"no metadata":              {func(c *api.PodSandboxConfig) { c.Metadata = nil }, "config.metadata"},
		"no name":                  {func(c *api.PodSandboxConfig) { c.Metadata.Name = "" }, "config.metadata.name"},
		"a name with a slash":      {func(c *api.PodSandboxConfig) { c.Metadata.Name = "../x" }, "config.metadata.name"},
		"a name with a line break": {func(c *api.PodSandboxConfig) { c.Metadata.Name = "a\nb" }, "config.metadata.name"},
		"no UID":                   {func(c *api.PodSandboxConfig) { c.Metadata.Uid = "" }, "config.metadata.uid"},
		"no namespace": {func(c *api.PodSandboxConfig) {
			c.Metadata.Namespace = ""
		}, "config.metadata.namespace"},
		"a NUL byte": {func(c *api.PodSandboxConfig) {
			c.Annotations["x"] = "a\x00"
		}, `config.annotations["x"]`},
		"a long hostname": {func(c *api.PodSandboxConfig) {
			c.Hostname = strings.Repeat("a", 65)
		}, "config.hostname"},
		"a hostname with a space":  {func(c *api.PodSandboxConfig) { c.Hostname = "a b" }, "config.hostname"},
		"a relative log directory": {func(c *api.PodSandboxConfig) { c.LogDirectory = "logs" }, "config.log_directory"},
		"a log directory with dots": {func(c *api.PodSandboxConfig) {
			c.LogDirectory = "/var/../etc"
		}, "config.log_directory"},
		"a DNS server that is none": {func(c *api.PodSandboxConfig) {
			c.DnsConfig.Servers = []string{"x\noptions y"}
		}, "config.dns_config.servers[0]"},
		"a search domain with a space": {func(c *api.PodSandboxConfig) {
			c.DnsConfig.Searches = []string{"", " "}
		}, "config.dns_config.searches[1]"},
		"a DNS option of two lines": {func(c *api.PodSandboxConfig) {
			c.DnsConfig.Options = []string{"a\nb"}
		}, "config.dns_config.options[0]"},
		"a port of 0": {func(c *api.PodSandboxConfig) { c.PortMappings[0].ContainerPort = 0 },
			"config.port_mappings[0].container_port"},
		"a port of 65536": {func(c *api.PodSandboxConfig) {
			c.PortMappings[0].HostPort = 65536
		}, "config.port_mappings[0].host_port"},
		"a negative port": {func(c *api.PodSandboxConfig) {
			c.PortMappings[0].HostPort = -1
		}, "config.port_mappings[0].host_port"},
		"a host IP that is none": {func(c *api.PodSandboxConfig) {
			c.PortMappings[0].HostIp = "here"
		}, "config.port_mappings[0].host_ip"},
		"a protocol that is none": {func(c *api.PodSandboxConfig) {
			c.PortMappings[0].Protocol = 9
		}, "config.port_mappings[0].protocol"},
		"a cgroup parent with dots": {func(c *api.PodSandboxConfig) {
			c.Linux.CgroupParent = "/a/../../b"
		}, "config.linux.cgroup_parent"},
		"a sysctl that is a path": {func(c *api.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"../x": "1"}
		}, `config.linux.sysctls["../x"]`},
		"something about Windows": {func(c *api.PodSandboxConfig) {
			c.Windows = &api.WindowsPodSandboxConfig{}
		}, "config.windows"},
		"a negative user": {podSecurity(func(s *api.LinuxSandboxSecurityContext) { s.RunAsUser.Value = -1 }),
			"config.linux.security_context.run_as_user"},
		"a target for a pod": {podSecurity(func(s *api.LinuxSandboxSecurityContext) {
			s.NamespaceOptions.Pid = api.NamespaceMode_TARGET
		}), "config.linux.security_context.namespace_options.pid"},
		"a user namespace of another": {podSecurity(func(s *api.LinuxSandboxSecurityContext) {
			s.NamespaceOptions.UsernsOptions.Mode = api.NamespaceMode_CONTAINER
		}), "config.linux.security_context.namespace_options.userns_options.mode"},
		"a user namespace of nobody": {podSecurity(func(s *api.LinuxSandboxSecurityContext) {
			s.NamespaceOptions.UsernsOptions.Uids = nil
		}), "config.linux.security_context.namespace_options.userns_options.uids"},
		"IDs that overflow": {podSecurity(func(s *api.LinuxSandboxSecurityContext) {
			s.NamespaceOptions.UsernsOptions.Gids[0].Length = math.MaxUint32
		}), "config.linux.security_context.namespace_options.userns_options.gids[0]"},
		"a reference without Localhost": {
			podSecurity(func(s *api.LinuxSandboxSecurityContext) { s.Seccomp.LocalhostRef = "/x" }),
			"config.linux.security_context.seccomp.localhost_ref"},
	}
	for name, tc := range sandboxes {
		t.Run("pod/"+name, func(t *testing.T) {
			r := &recorder{}
			req := sandboxRequest()
			tc.change(req.Config)
			_, err := (&runtimeService{Deps: Deps{Runtime: r}, dialect: V1{}}).RunPodSandbox(t.Context(), req)
			refused(t, r, err, tc.path)
		})
	}
	for name, tc := range map[string]struct {
		change containers
		path   string
	}{
		"no metadata":               {func(c *api.ContainerConfig) { c.Metadata = nil }, "config.metadata"},
		"no name":                   {func(c *api.ContainerConfig) { c.Metadata.Name = "" }, "config.metadata.name"},
		"no image":                  {func(c *api.ContainerConfig) { c.Image = nil }, "config.image.image"},
		"a relative directory":      {func(c *api.ContainerConfig) { c.WorkingDir = "w" }, "config.working_dir"},
		"a NUL byte in an argument": {func(c *api.ContainerConfig) { c.Args[1] = "\x00" }, "config.args[1]"},
		"a variable without a name": {func(c *api.ContainerConfig) { c.Envs[0].Key = "" }, "config.envs[0].key"},
		"a variable with =":         {func(c *api.ContainerConfig) { c.Envs[0].Key = "a=b" }, "config.envs[0].key"},
		"a NUL byte in a variable":  {func(c *api.ContainerConfig) { c.Envs[0].Value = []byte{0} }, "config.envs[0].value"},
		"a log outside":             {func(c *api.ContainerConfig) { c.LogPath = "a/../../b" }, "config.log_path"},
		"an absolute log":           {func(c *api.ContainerConfig) { c.LogPath = "/etc/passwd" }, "config.log_path"},
		"a signal that is none":     {func(c *api.ContainerConfig) { c.StopSignal = 99 }, "config.stop_signal"},
		"an empty label key":        {func(c *api.ContainerConfig) { c.Labels[""] = "x" }, "config.labels"},
		"something about Windows": {func(c *api.ContainerConfig) {
			c.Windows = &api.WindowsContainerConfig{}
		}, "config.windows"},
		"no permissions of a device": {func(c *api.ContainerConfig) {
			c.Devices[0].Permissions = ""
		}, "config.devices[0].permissions"},
		"a device nowhere": {func(c *api.ContainerConfig) {
			c.Devices[0].HostPath = ""
		}, "config.devices[0].host_path"},
		"a CDI device without kind": {func(c *api.ContainerConfig) {
			c.CDIDevices[0].Name = "gpu0"
		}, "config.CDI_devices[0].name"},
		"a mount on nothing": {mount(func(m *api.Mount) { m.ContainerPath = "" }), "config.mounts[0].container_path"},
		"a mount on the root": {mount(func(m *api.Mount) {
			m.ContainerPath = "/a/.."
		}), "config.mounts[0].container_path"},
		"a mount of nothing": {mount(func(m *api.Mount) { m.HostPath = "" }), "config.mounts[0].host_path"},
		"a relative mount":   {mount(func(m *api.Mount) { m.HostPath = "srv" }), "config.mounts[0].host_path"},
		"a mount of two things": {mount(func(m *api.Mount) {
			m.Image = &api.ImageSpec{Image: "x"}
		}), "config.mounts[0].host_path"},
		"a propagation that is none": {mount(func(m *api.Mount) { m.Propagation = 7 }), "config.mounts[0].propagation"},
		"recursive but writable": {mount(func(m *api.Mount) { m.Readonly = false }),
			"config.mounts[0].recursive_read_only"},
		"recursive but shared": {mount(func(m *api.Mount) { m.Propagation = 1 }),
			"config.mounts[0].recursive_read_only"},
		"an option of a mount with a field of its own": {
			mount(func(m *api.Mount) { m.MountOptions = []string{"nodev", "rw"} }), "config.mounts[0].mount_options[1]"},
		"a sub path of no image": {mount(func(m *api.Mount) { m.ImageSubPath = "a" }), "config.mounts[0].image_sub_path"},
		"a sub path outside": {func(c *api.ContainerConfig) {
			c.Mounts[2].ImageSubPath = "../a"
		}, "config.mounts[2].image_sub_path"},
		"a group without a user": {security(func(s *api.LinuxContainerSecurityContext) { s.RunAsUsername = "" }),
			"config.linux.security_context.run_as_group"},
		"a user twice": {
			security(func(s *api.LinuxContainerSecurityContext) { s.RunAsUser = &api.Int64Value{} }),
			"config.linux.security_context.run_as_username"},
		"a group beyond 32 bits": {
			security(func(s *api.LinuxContainerSecurityContext) { s.SupplementalGroups[0] = 1 << 32 }),
			"config.linux.security_context.supplemental_groups[0]"},
		"a capability that is none": {security(func(s *api.LinuxContainerSecurityContext) {
			s.Capabilities.AddCapabilities[0] = "a b"
		}), "config.linux.security_context.capabilities.add_capabilities[0]"},
		"a relative masked path": {security(func(s *api.LinuxContainerSecurityContext) { s.MaskedPaths[0] = "proc" }),
			"config.linux.security_context.masked_paths[0]"},
		"a target of nothing": {
			security(func(s *api.LinuxContainerSecurityContext) { s.NamespaceOptions.TargetId = "" }),
			"config.linux.security_context.namespace_options.target_id"},
		"a target not asked for": {security(func(s *api.LinuxContainerSecurityContext) { s.NamespaceOptions.Pid = 0 }),
			"config.linux.security_context.namespace_options.target_id"},
		"a target network": {
			security(func(s *api.LinuxContainerSecurityContext) { s.NamespaceOptions.Network = 3 }),
			"config.linux.security_context.namespace_options.network"},
		"a policy that is none": {
			security(func(s *api.LinuxContainerSecurityContext) { s.SupplementalGroupsPolicy = 4 }),
			"config.linux.security_context.supplemental_groups_policy"},
		"an old profile unknown": {security(func(s *api.LinuxContainerSecurityContext) { s.SeccompProfilePath = "x" }),
			"config.linux.security_context.seccomp_profile_path"},
		"an old profile relative": {
			security(func(s *api.LinuxContainerSecurityContext) { s.SeccompProfilePath = "localhost/x" }),
			"config.linux.security_context.seccomp_profile_path"},
		"a short period": {resources(func(r *api.LinuxContainerResources) { r.CpuPeriod = 1 }),
			"config.linux.resources.cpu_period"},
		"a negative period": {resources(func(r *api.LinuxContainerResources) { r.CpuPeriod = -1 }),
			"config.linux.resources.cpu_period"},
		"a negative limit": {resources(func(r *api.LinuxContainerResources) { r.MemoryLimitInBytes = -5 }),
			"config.linux.resources.memory_limit_in_bytes"},
		"less swap than memory": {resources(func(r *api.LinuxContainerResources) { r.MemorySwapLimitInBytes = 1 }),
			"config.linux.resources.memory_swap_limit_in_bytes"},
		"an absurd score": {resources(func(r *api.LinuxContainerResources) { r.OomScoreAdj = 1001 }),
			"config.linux.resources.oom_score_adj"},
		"CPUs that are none": {resources(func(r *api.LinuxContainerResources) { r.CpusetCpus = "all" }),
			"config.linux.resources.cpuset_cpus"},
		"a page size that is none": {
			resources(func(r *api.LinuxContainerResources) { r.HugepageLimits[0].PageSize = "big" }),
			"config.linux.resources.hugepage_limits[0].page_size"},
		"a cgroup file outside": {resources(func(r *api.LinuxContainerResources) {
			r.Unified = map[string]string{"../x.y": "1"}
		}), `config.linux.resources.unified["../x.y"]`},
	} {
		t.Run("container/"+name, func(t *testing.T) {
			r := &recorder{}
			req := containerRequest()
			tc.change(req.Config)
			_, err := (&runtimeService{Deps: Deps{Runtime: r}, dialect: V1{}}).CreateContainer(t.Context(), req)
			refused(t, r, err, tc.path)
		})
	}
}

func refused(t *testing.T, r *recorder, err error, path string) {
	t.Helper()
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("error %v, want invalid argument", err)
	}
	if !strings.Contains(err.Error(), path+": ") {
		t.Errorf("error %q does not name %s", err, path)
	}
	if code := status.Code(cri.Status(err)); code != codes.InvalidArgument {
		t.Errorf("code %v", code)
	}
	if r.count() > 0 {
		t.Errorf("the domain was called: %v", r.calls)
	}
}

func TestCallsWithoutWhatTheyNeedAreRefused(t *testing.T) {
	d := open(t, slog.LevelError)
	ctx := t.Context()
	for name, err := range map[string]error{
		"RunPodSandbox config":          second(d.RunPodSandbox(ctx, &api.RunPodSandboxRequest{})),
		"StopPodSandbox pod_sandbox_id": second(d.StopPodSandbox(ctx, &api.StopPodSandboxRequest{})),
		"RemovePodSandbox pod_sandbox":  second(d.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{})),
		"PodSandboxStatus pod_sandbox":  second(d.PodSandboxStatus(ctx, &api.PodSandboxStatusRequest{})),
		"CreateContainer config":        second(d.CreateContainer(ctx, &api.CreateContainerRequest{PodSandboxId: "p"})),
		"StartContainer container_id":   second(d.StartContainer(ctx, &api.StartContainerRequest{})),
		"StopContainer timeout": second(d.StopContainer(ctx,
			&api.StopContainerRequest{ContainerId: "c", Timeout: -1})),
		"RemoveContainer container_id": second(d.RemoveContainer(ctx, &api.RemoveContainerRequest{})),
		"ContainerStatus container_id": second(d.ContainerStatus(ctx, &api.ContainerStatusRequest{})),
		"ReopenContainerLog container": second(d.ReopenContainerLog(ctx, &api.ReopenContainerLogRequest{})),
		"UpdateContainerResources linux": second(d.UpdateContainerResources(ctx,
			&api.UpdateContainerResourcesRequest{ContainerId: "c"})),
		"ExecSync cmd": second(d.ExecSync(ctx, &api.ExecSyncRequest{ContainerId: "c"})),
		"Exec stdin":   second(d.Exec(ctx, &api.ExecRequest{ContainerId: "c", Cmd: []string{"a"}})),
		"Exec stderr": second(d.Exec(ctx,
			&api.ExecRequest{ContainerId: "c", Cmd: []string{"a"}, Tty: true, Stderr: true})),
		"Attach container_id": second(d.Attach(ctx, &api.AttachRequest{Stdout: true})),
		"PortForward port[1]": second(d.PortForward(ctx,
			&api.PortForwardRequest{PodSandboxId: "p", Port: []int32{1, 0}})),
		"ContainerStats container_id": second(d.ContainerStats(ctx, &api.ContainerStatsRequest{})),
		"PodSandboxStats pod_sandbox": second(d.PodSandboxStats(ctx, &api.PodSandboxStatsRequest{})),
		"PullImage image.image":       second(d.PullImage(ctx, &api.PullImageRequest{})),
		"ImageStatus image.image":     second(d.ImageStatus(ctx, &api.ImageStatusRequest{})),
		"RemoveImage image.image":     second(d.RemoveImage(ctx, &api.RemoveImageRequest{})),
		"UpdateRuntimeConfig pod_cidr": second(d.UpdateRuntimeConfig(ctx, &api.UpdateRuntimeConfigRequest{
			RuntimeConfig: &api.RuntimeConfig{NetworkConfig: &api.NetworkConfig{PodCidr: "here"}}})),
		"ListContainers state": second(d.ListContainers(ctx, &api.ListContainersRequest{
			Filter: &api.ContainerFilter{State: &api.ContainerStateValue{State: 77}}})),
	} {
		field := strings.Fields(name)[1]
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d.rec.count() > 0 {
		t.Errorf("the domain was called: %v", d.rec.calls)
	}
}

func second[T any](_ T, err error) error { return err }

func TestErrorsHaveTheCodesThatClientsActOn(t *testing.T) {
	d := open(t, slog.LevelError)
	for code, err := range map[codes.Code]error{
		codes.NotFound:           errdefs.ErrNotFound,
		codes.AlreadyExists:      errdefs.ErrAlreadyExists,
		codes.FailedPrecondition: errdefs.ErrFailedPrecondition,
		codes.ResourceExhausted:  syscall.ENOSPC,
		codes.Unavailable:        errdefs.ErrUnavailable,
		codes.Unauthenticated:    errdefs.ErrUnauthenticated,
		codes.PermissionDenied:   errdefs.ErrPermissionDenied,
		codes.Unimplemented:      errdefs.ErrNotImplemented,
		codes.DeadlineExceeded:   context.DeadlineExceeded,
		codes.Canceled:           context.Canceled,
		codes.Internal:           errors.New("something"),
	} {
		d.rec.err = fmt.Errorf("container c: start: %w", err)
		_, got := d.StartContainer(t.Context(), &api.StartContainerRequest{ContainerId: "c"})
		if status.Code(got) != code || !strings.Contains(got.Error(), "container c: start") {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestAPanicIsAnErrorAndTheDaemonGoesOn(t *testing.T) {
	d := open(t, slog.LevelError)
	d.rec.panics = true
	_, err := d.StartContainer(t.Context(), &api.StartContainerRequest{ContainerId: "c"})
	if status.Code(err) != codes.Internal {
		t.Errorf("error %v", err)
	}
	events, err := d.GetContainerEvents(t.Context(), &api.GetEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.Internal {
		t.Errorf("stream: error %v", err)
	}
	if log := d.log.String(); !strings.Contains(log, "the domain panics") || !strings.Contains(log, "fake_test.go") {
		t.Errorf("the log has no panic with its stack: %s", log)
	}
	d.rec.panics = false
	if _, err := d.StartContainer(t.Context(), &api.StartContainerRequest{ContainerId: "c"}); err != nil {
		t.Error(err)
	}
}

func TestNoSecretReachesTheLog(t *testing.T) {
	d := open(t, slog.LevelDebug)
	const secret = "hunter2secret"
	auth := &api.AuthConfig{Username: "u", Password: secret, Auth: secret, IdentityToken: secret, RegistryToken: secret}
	for _, err := range []error{nil, errdefs.ErrUnauthenticated} {
		d.rec.err = err
		_, _ = d.PullImage(t.Context(), &api.PullImageRequest{Image: &api.ImageSpec{Image: "x"}, Auth: auth})
		req := containerRequest()
		req.Config.Envs = []*api.KeyValue{{Key: "P", Value: []byte(secret)}, {Key: "", Value: []byte(secret + "\x00")}}
		_, _ = d.CreateContainer(t.Context(), req)
		req.Config.Envs = req.Config.Envs[:1]
		_, _ = d.CreateContainer(t.Context(), req)
	}
	if got := d.rec.last("CreateContainer")[1].(*model.ContainerConfig).Env[0].Value; got != secret {
		t.Errorf("the variable is %q", got)
	}
	log := d.log.String()
	if strings.Contains(log, secret) {
		t.Errorf("the log has it: %s", log)
	}
	if !strings.Contains(log, "CreateContainer") || !strings.Contains(log, "pod_id=pod1") {
		t.Errorf("the log has no calls: %s", log)
	}
}

func TestStatusTellsOfTheNode(t *testing.T) {
	d := open(t, slog.LevelError)
	v, err := d.Version(t.Context(), &api.VersionRequest{Version: "0.1.0"})
	if err != nil || v.RuntimeName != "berth" || v.RuntimeApiVersion != "v1" || v.Version != "0.1.0" ||
		v.RuntimeVersion != "0.1.0" {
		t.Errorf("%v, %v", v, err)
	}
	st, err := d.Status(t.Context(), &api.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if c := st.Status.Conditions; len(c) != 2 || !c[0].Status || c[1].Reason != "NoNetwork" {
		t.Errorf("conditions %v", c)
	}
	if h := st.RuntimeHandlers; len(h) != 2 || !h[0].Features.RecursiveReadOnlyMounts || !h[1].Features.UserNamespaces {
		t.Errorf("handlers %v", h)
	}
	if !st.Features.SupplementalGroupsPolicy || st.Info["config"] != `{"a":1}` {
		t.Errorf("%v", st)
	}
	if st, err = d.Status(t.Context(), &api.StatusRequest{}); err != nil || len(st.Info) > 0 {
		t.Errorf("info %v, %v", st.Info, err)
	}
	cfg, err := d.RuntimeConfig(t.Context(), &api.RuntimeConfigRequest{})
	if err != nil || cfg.Linux.CgroupDriver != api.CgroupDriver_SYSTEMD {
		t.Errorf("%v, %v", cfg, err)
	}
	_, err = d.UpdateRuntimeConfig(t.Context(), &api.UpdateRuntimeConfigRequest{
		RuntimeConfig: &api.RuntimeConfig{NetworkConfig: &api.NetworkConfig{PodCidr: "10.1.0.0/24,fd00::/64"}},
	})
	if args := d.rec.last("SetPodCIDR"); err != nil || len(args) != 1 || args[0] != "10.1.0.0/24,fd00::/64" {
		t.Errorf("%v, %v", args, err)
	}
}

// TestAnEmptySearchDomainIsLeftOut: kubelets 1.17 to 1.24 make one of "search ." in the node's resolv.conf.
func TestAnEmptySearchDomainIsLeftOut(t *testing.T) {
	d := open(t, slog.LevelError)
	for _, c := range [][2][]string{{{""}, nil}, {{"a.test", "", "b.test"}, {"a.test", "b.test"}}} {
		req := sandboxRequest()
		req.Config.DnsConfig.Searches = c[0]
		if _, err := d.RunPodSandbox(t.Context(), req); err != nil {
			t.Errorf("%q: %v", c[0], err)
		} else if got := d.rec.last("RunSandbox")[0].(*model.SandboxConfig).DNS.Searches; !slices.Equal(got, c[1]) {
			t.Errorf("%q became %q", c[0], got)
		}
	}
}

func TestStatesAndUsageAreTold(t *testing.T) {
	d := open(t, slog.LevelError)
	at := time.Unix(100, 5)
	cfg := toSandboxConfig(&check{Check: &request.Check{}, dialect: V1{}}, "config", sandboxRequest().Config)
	ctr := toContainerConfig(&check{Check: &request.Check{}, dialect: V1{}}, "config", containerRequest().Config)
	d.rec.sandboxes = []*model.SandboxStatus{{ID: "pod1", Config: cfg, State: model.SandboxReady, CreatedAt: at,
		IPs: []string{"10.0.0.2", "fd00::2"}, RuntimeHandler: "crun"}}
	d.rec.containers = []*model.ContainerStatus{{ID: "c1", SandboxID: "pod1", Config: ctr,
		State: model.ContainerExited, CreatedAt: at,
		StartedAt: at, FinishedAt: at, ExitCode: 137, Reason: model.ReasonOOMKilled, Message: "m", ImageID: "sha256:1",
		ImageRef: "busybox@sha256:9", LogPath: "/var/log/x", Resources: ctr.Resources,
		User:       &model.User{UID: 1, GID: 2, Groups: []int64{3}},
		StopSignal: syscall.SIGTERM}}
	d.rec.usage = []*model.ContainerUsage{{Container: d.rec.containers[0], At: at,
		CPU:    &model.CPUUsage{UsageNanoSeconds: 5},
		Memory: &model.MemoryUsage{WorkingSet: 6}, Swap: &model.SwapUsage{Usage: 7},
		IO:            &model.IOUsage{PSI: &model.PSI{Some: model.PSIData{Total: 8}}},
		WritableLayer: &model.FilesystemUsage{At: at, Mountpoint: "/", UsedBytes: 9, InodesUsed: 2}}, {}}
	d.rec.podUsage = []*model.SandboxUsage{{Sandbox: d.rec.sandboxes[0], At: at, Processes: ptr[uint64](4),
		Containers: d.rec.usage,
		Network:    []model.InterfaceUsage{{Name: "eth0", RxBytes: 1}, {Name: "net1", TxBytes: 2}}}}

	st, err := d.PodSandboxStatus(t.Context(), &api.PodSandboxStatusRequest{PodSandboxId: "pod1", Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if s := st.Status; s.State != api.PodSandboxState_SANDBOX_READY || s.CreatedAt != at.UnixNano() ||
		s.Network.Ip != "10.0.0.2" ||
		s.Network.AdditionalIps[0].Ip != "fd00::2" || s.Labels["a"] != "b" || s.Annotations["c"] != "d" ||
		s.RuntimeHandler != "crun" ||
		s.Linux.Namespaces.Options.Network != api.NamespaceMode_NODE || s.Metadata.Attempt != 2 {
		t.Errorf("%v", s)
	}
	if len(st.ContainersStatuses) != 1 || st.Timestamp == 0 || st.Info["info"] == "" {
		t.Errorf("%v", st)
	}
	if f := d.rec.calls[1].args[0].(model.ContainerFilter); f.SandboxID != "pod1" {
		t.Errorf("filter %+v", f)
	}

	cs, err := d.ContainerStatus(t.Context(), &api.ContainerStatusRequest{ContainerId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if s := cs.Status; s.State != api.ContainerState_CONTAINER_EXITED || s.ExitCode != 137 || s.Reason != "OOMKilled" ||
		s.FinishedAt != at.UnixNano() || s.ImageRef != "busybox@sha256:9" || s.ImageId != "sha256:1" ||
		s.Image.UserSpecifiedImage != "busybox" ||
		s.Image.Image != "busybox" ||
		s.StopSignal != api.Signal_SIGNAL_SIGTERM || s.User.Linux.SupplementalGroups[0] != 3 ||
		s.Resources.Linux.CpuShares != 512 ||
		len(s.Mounts) != 3 || s.Mounts[1].Propagation != api.MountPropagation_PROPAGATION_BIDIRECTIONAL ||
		s.Mounts[2].Image.Image != "sha256:2" || s.LogPath != "/var/log/x" || len(cs.Info) > 0 {
		t.Errorf("%v", s)
	}

	list, err := d.ListContainers(t.Context(), &api.ListContainersRequest{Filter: &api.ContainerFilter{
		State:         &api.ContainerStateValue{State: api.ContainerState_CONTAINER_CREATED},
		LabelSelector: map[string]string{"a": "b"}}})
	if err != nil || len(list.Containers) != 1 || list.Containers[0].PodSandboxId != "pod1" ||
		list.Containers[0].ImageRef != "sha256:1" || list.Containers[0].ImageId != "sha256:1" {
		t.Errorf("%v, %v", list, err)
	}
	if f := d.rec.last("ListContainers")[0].(model.ContainerFilter); len(f.States) != 1 ||
		f.States[0] != model.ContainerCreated || f.Labels["a"] != "b" {
		t.Errorf("filter %+v: created is not the same as unset", f)
	}
	if _, err := d.ListPodSandbox(t.Context(), &api.ListPodSandboxRequest{}); err != nil {
		t.Error(err)
	}
	if f := d.rec.last("ListSandboxes")[0].(model.SandboxFilter); f.State != "" {
		t.Errorf("filter %+v: unset is not ready", f)
	}

	stats, err := d.ContainerStats(t.Context(), &api.ContainerStatsRequest{ContainerId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if s := stats.Stats; s.Attributes.Id != "c1" || s.Cpu.UsageCoreNanoSeconds.Value != 5 || s.Cpu.UsageNanoCores != nil ||
		s.Memory.WorkingSetBytes.Value != 6 || s.Swap.SwapUsageBytes.Value != 7 || s.Io.Psi.Some.Total != 8 ||
		s.WritableLayer.UsedBytes.Value != 9 {
		t.Errorf("%v", s)
	}
	if all, err := d.ListContainerStats(t.Context(), &api.ListContainerStatsRequest{}); err != nil ||
		len(all.Stats) != 2 || all.Stats[1].Cpu != nil {
		t.Errorf("%v, %v", all, err)
	}
	pods, err := d.PodSandboxStats(t.Context(), &api.PodSandboxStatsRequest{PodSandboxId: "pod1"})
	if err != nil {
		t.Fatal(err)
	}
	if l := pods.Stats.Linux; l.Process.ProcessCount.Value != 4 || l.Network.DefaultInterface.Name != "eth0" ||
		l.Network.Interfaces[0].TxBytes.Value != 2 || len(l.Containers) != 2 {
		t.Errorf("%v", l)
	}
	fs, err := d.ImageFsInfo(t.Context(), &api.ImageFsInfoRequest{})
	if err != nil || fs.ImageFilesystems[0].UsedBytes.Value != 5 || fs.ContainerFilesystems[0].UsedBytes.Value != 9 ||
		fs.ContainerFilesystems[0].FsId.Mountpoint != "/var/lib/berth" {
		t.Errorf("%v, %v", fs, err)
	}
	f := d.rec.last("ListContainerUsage")[0].(model.ContainerFilter)
	if !slices.Contains(f.States, model.ContainerExited) || !slices.Contains(f.States, model.ContainerCreated) {
		t.Errorf("filter %+v: the layers of containers that do not run are not counted", f)
	}
}

func TestEventsAreStreamed(t *testing.T) {
	d := open(t, slog.LevelError)
	d.rec.events = []model.ContainerEvent{
		{ContainerID: "c1", Type: model.EventStarted, At: time.Unix(1, 0), Sandbox: &model.SandboxStatus{ID: "p"},
			Containers: []*model.ContainerStatus{{ID: "c1", State: model.ContainerRunning}}},
		{ContainerID: "p", SandboxID: "p", Type: model.EventDeleted, At: time.Unix(2, 0)},
	}
	events, err := d.GetContainerEvents(t.Context(), &api.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := events.Recv()
	if err != nil || e.ContainerEventType != api.ContainerEventType_CONTAINER_STARTED_EVENT ||
		e.PodSandboxStatus.Id != "p" ||
		e.ContainersStatuses[0].State != api.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v, %v", e, err)
	}
	e, err = events.Recv()
	if err != nil || e.ContainerEventType != api.ContainerEventType_CONTAINER_DELETED_EVENT || e.PodSandboxStatus != nil {
		t.Errorf("%v, %v", e, err)
	}
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
		t.Errorf("a reader that was cut off: %v", err)
	}
}

func TestStreamsAreForWhatRuns(t *testing.T) {
	d := open(t, slog.LevelError)
	d.rec.containers = []*model.ContainerStatus{{ID: "run", State: model.ContainerRunning},
		{ID: "end", State: model.ContainerExited}}
	d.rec.sandboxes = []*model.SandboxStatus{{ID: "p", State: model.SandboxReady}, {ID: "q", State: model.SandboxNotReady}}
	ctx := t.Context()
	e, err := d.Exec(ctx, &api.ExecRequest{ContainerId: "run", Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true})
	if err != nil || e.Url != "http://exec" {
		t.Errorf("%v, %v", e, err)
	}
	want := stream.ExecRequest{ContainerID: "run", Cmd: []string{"sh"},
		Wanted: stream.Wanted{TTY: true, Stdin: true, Stdout: true}}
	if got := d.rec.last("GetExec")[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if _, err := d.Exec(ctx, &api.ExecRequest{ContainerId: "end", Cmd: []string{"sh"},
		Stdout: true}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if _, err := d.Attach(ctx, &api.AttachRequest{ContainerId: "none", Stdout: true}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err := d.PortForward(ctx, &api.PortForwardRequest{PodSandboxId: "p", Port: []int32{80}}); err != nil {
		t.Error(err)
	}
	if _, err := d.PortForward(ctx,
		&api.PortForwardRequest{PodSandboxId: "q"}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}

// A client that brings a terminal to a container without one would wait for what nobody sends. Without the comparison
// all four get an address.
func TestAnAttachHasTheTerminalOfItsContainer(t *testing.T) {
	d := open(t, slog.LevelError)
	d.rec.containers = []*model.ContainerStatus{
		{ID: "plain", State: model.ContainerRunning, Config: &model.ContainerConfig{}},
		{ID: "terminal", State: model.ContainerRunning, Config: &model.ContainerConfig{TTY: true}},
	}
	for id, has := range map[string]bool{"plain": false, "terminal": true} {
		for _, tty := range []bool{false, true} {
			a, err := d.Attach(t.Context(), &api.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Tty: tty})
			switch {
			case tty != has:
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "tty: is") {
					t.Errorf("%s with tty %t: %v", id, tty, err)
				}
			case err != nil || a.Url != "http://attach":
				t.Errorf("%s with tty %t: %v, %v", id, tty, a, err)
			default:
				want := stream.AttachRequest{ContainerID: id, Wanted: stream.Wanted{TTY: tty, Stdin: true, Stdout: true}}
				if got := d.rec.last("GetAttach")[0]; !reflect.DeepEqual(got, want) {
					t.Errorf("%+v", got)
				}
			}
		}
	}
}

// TestOutputOfExecSyncFitsAMessage, and the log says where it did not.
func TestOutputOfExecSyncFitsAMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	d := open(t, slog.LevelWarn)
	d.rec.containers = []*model.ContainerStatus{{ID: "c", State: model.ContainerRunning}}
	const mib = 1 << 20
	for _, tc := range []struct{ out, err, wantOut, wantErr int }{
		{10, 20, 10, 20},
		{16 * mib, 0, maxMessage, 0},
		{16 * mib, 16 * mib, maxMessage / 2, maxMessage - maxMessage/2},
		{16 * mib, 1 * mib, maxMessage - mib, mib},
		{mib, 16 * mib, mib, maxMessage - mib},
	} {
		d.rec.stdout, d.rec.stderr = make([]byte, tc.out), make([]byte, tc.err)
		resp, err := d.ExecSync(t.Context(), &api.ExecSyncRequest{ContainerId: "c", Cmd: []string{"a"}, Timeout: 2})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Stdout) != tc.wantOut || len(resp.Stderr) != tc.wantErr || resp.ExitCode != 3 {
			t.Errorf("%+v: %d, %d", tc, len(resp.Stdout), len(resp.Stderr))
		}
		cut := len(resp.Stdout)+len(resp.Stderr) < tc.out+tc.err
		if log := d.log.take(); strings.Contains(log, "is cut off") != cut {
			t.Errorf("%+v: the log has %q", tc, log)
		}
	}
	if timeout := d.rec.last("ExecSync")[2]; timeout != 2*time.Second {
		t.Errorf("timeout %v", timeout)
	}
	if _, err := d.StopContainer(t.Context(),
		&api.StopContainerRequest{ContainerId: "c", Timeout: math.MaxInt64}); err != nil {
		t.Error(err)
	}
	// Calls add to a timeout: the sum has to be a Duration too.
	if timeout := d.rec.last("StopContainer")[1].(time.Duration); timeout < 50*365*24*time.Hour || 2*timeout < timeout {
		t.Errorf("timeout %v", timeout)
	}
}

func TestImages(t *testing.T) {
	d := open(t, slog.LevelError)
	ctx := t.Context()
	d.rec.images = []*model.Image{{ID: "sha256:1", RepoTags: []string{"a:1"}, Size: 7, Pinned: true,
		Config: ocispec.ImageConfig{User: "1002:users"}}}
	spec := func(name string) *api.ImageSpec { return &api.ImageSpec{Image: name} }
	st, err := d.ImageStatus(ctx, &api.ImageStatusRequest{Image: spec("sha256:1"), Verbose: true})
	if err != nil || st.Image.Uid.Value != 1002 || st.Image.Username != "" || !st.Image.Pinned || st.Image.Size != 7 ||
		!strings.Contains(st.Info["info"], `"os":"linux"`) {
		t.Errorf("%v, %v", st, err)
	}
	if st, err := d.ImageStatus(ctx, &api.ImageStatusRequest{Image: spec("none")}); err != nil || st.Image != nil {
		t.Errorf("%v, %v", st, err)
	}
	if l, err := d.ListImages(ctx, &api.ListImagesRequest{}); err != nil || len(l.Images) != 1 {
		t.Errorf("%v, %v", l, err)
	}
	if l, err := d.ListImages(ctx, &api.ListImagesRequest{Filter: &api.ImageFilter{Image: spec("none")}}); err != nil ||
		len(l.Images) != 0 {
		t.Errorf("%v, %v", l, err)
	}
	p, err := d.PullImage(ctx, &api.PullImageRequest{Image: spec("a:1"),
		Auth: &api.AuthConfig{Username: "u", RegistryToken: "t"}})
	if err != nil || p.ImageRef != "sha256:1" {
		t.Errorf("%v, %v", p, err)
	}
	if auth := d.rec.last("PullImage")[1].(*model.Auth); auth.Username != "u" || auth.RegistryToken != "t" {
		t.Errorf("auth %+v", auth)
	}
	if _, err := d.RemoveImage(ctx, &api.RemoveImageRequest{Image: spec("a:1")}); err != nil {
		t.Error(err)
	}
	d.rec.err = fmt.Errorf("x: %w", errdefs.ErrNotFound)
	if _, err := d.RemoveImage(ctx, &api.RemoveImageRequest{Image: spec("a:1")}); err != nil {
		t.Errorf("an absent image: %v", err)
	}
	for user, want := range map[string]string{"": "", "www-data": "www-data", "www:1": "www", "0": "", "-1": "-1"} {
		if _, name := imageUser(user); name != want {
			t.Errorf("USER %q: %q", user, name)
		}
	}
}

func TestSignalsGoBothWays(t *testing.T) {
	seen := map[syscall.Signal]bool{}
	for n, name := range api.Signal_name {
		c := &check{Check: &request.Check{}, dialect: V1{}}
		sig := toSignal(c, "stop_signal", api.Signal(n))
		if err := c.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n == 0 {
			continue
		}
		seen[sig] = true
		if back := toSignal(c, "", fromSignal(sig)); back != sig {
			t.Errorf("%s is %d and comes back as %d", name, sig, back)
		}
	}
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sig != 32 && sig != 33 && !seen[sig] {
			t.Errorf("signal %d has no name", sig)
		}
	}
	for api, want := range map[api.Signal]syscall.Signal{api.Signal_SIGNAL_SIGTERM: 15, api.Signal_SIGNAL_SIGRTMIN: 34,
		api.Signal_SIGNAL_SIGRTMINPLUS15: 49, api.Signal_SIGNAL_SIGRTMAXMINUS14: 50, api.Signal_SIGNAL_SIGRTMAX: 64,
		api.Signal_SIGNAL_SIGPOLL: syscall.SIGIO} {
		if got := toSignal(&check{Check: &request.Check{}, dialect: V1{}}, "", api); got != want {
			t.Errorf("%v: %d, want %d", api, got, want)
		}
	}
}

// TestAnUpdateOfAPodTakesWhatAKubeletsSubtractionLeaves: kubelets up to 1.36 subtract the pod's overhead from "no
// limit" too, and from a quota that is hardly more. The overhead itself, and the limits of a new pod, stay strict. Seen
// to fail when the call was refused.
func TestAnUpdateOfAPodTakesWhatAKubeletsSubtractionLeaves(t *testing.T) {
	d := open(t, slog.LevelError)
	for _, c := range [][4]int64{ // quota and memory, as they are sent and as they are meant
		{-1, -1, -1, -1}, {-25001, -33554433, -1, -1}, {500, 1 << 20, 1000, 1 << 20}, {1001, 0, 1001, 0}, {0, 5, 0, 5},
	} {
		limits := &api.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: c[0], MemoryLimitInBytes: c[1]}
		_, err := d.UpdatePodSandboxResources(t.Context(),
			&api.UpdatePodSandboxResourcesRequest{PodSandboxId: "p", Resources: limits})
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		got := d.rec.last("UpdateSandboxResources")[2].(*model.Resources)
		if got.CPUQuota != c[2] || got.MemoryLimit != c[3] || got.CPUPeriod != 100000 {
			t.Errorf("%v came as %+v", c, got)
		}
	}
	for _, quota := range []int64{-2, 999} {
		wrong := &api.LinuxContainerResources{CpuQuota: quota}
		_, err := d.UpdatePodSandboxResources(t.Context(),
			&api.UpdatePodSandboxResourcesRequest{PodSandboxId: "p", Overhead: wrong})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("an overhead of %d: %v", quota, err)
		}
		req := sandboxRequest()
		req.Config.Linux.Resources = wrong
		if _, err := d.RunPodSandbox(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a new pod with %d: %v", quota, err)
		}
	}
}

func TestACheckpointIsAskedFor(t *testing.T) {
	d := open(t, slog.LevelError)
	if _, err := d.CheckpointContainer(t.Context(),
		&api.CheckpointContainerRequest{ContainerId: "c", Location: "/x.tar", Timeout: 7}); err != nil {
		t.Fatal(err)
	}
	if args := d.rec.last("CheckpointContainer"); !reflect.DeepEqual(args, []any{"c", "/x.tar", 7 * time.Second}) {
		t.Errorf("asked for %v", args)
	}
}

func TestACheckpointOfAPodIsAskedFor(t *testing.T) {
	d := open(t, slog.LevelError)
	if _, err := d.CheckpointPod(t.Context(), &api.CheckpointPodRequest{
		PodSandboxId: "p", OutputPath: "/x", ContainerIds: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	if args := d.rec.last("CheckpointSandbox"); !reflect.DeepEqual(args, []any{"p", "/x", []string{"a", "b"}}) {
		t.Errorf("asked for %v", args)
	}
}

func TestAPodIsRestoredWithAllItsContainers(t *testing.T) {
	d := open(t, slog.LevelError)
	first, second := containerRequest().Config, containerRequest().Config
	first.Metadata.Name, second.Metadata.Name = "first", "second"
	resp, err := d.RestorePod(t.Context(), &api.RestorePodRequest{CheckpointPath: "/x", Config: sandboxRequest().Config,
		RuntimeHandler: "h", ContainerConfigs: []*api.ContainerConfig{first, second}})
	if err != nil {
		t.Fatal(err)
	}
	args := d.rec.last("RestoreSandbox")
	if args[0] != "/x" || args[2] != "h" {
		t.Errorf("asked for %v", args)
	}
	if got := args[1].(*model.SandboxConfig).Metadata.Name; got != sandboxRequest().Config.Metadata.Name {
		t.Errorf("the pod is called %q", got)
	}
	for i, c := range args[3].([]*model.ContainerConfig) {
		name := []string{"first", "second"}[i]
		if got := resp.RestoredContainers[i]; c.Metadata.Name != name || got.Name != name ||
			got.ContainerId != "restored-"+name {
			t.Errorf("container %d is %q, and answered as %v", i, c.Metadata.Name, got)
		}
	}
	if resp.PodSandboxId != "restored" || len(resp.RestoredContainers) != 2 {
		t.Errorf("the answer is %v", resp)
	}
}
