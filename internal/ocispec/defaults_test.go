package ocispec

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/model"
)

func TestAPodsOwnSysctlsWinAndTheNodesNamespacesAreLeftAlone(t *testing.T) {
	others := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "kernel.msgmax": "1"}
	for _, c := range []struct {
		asked, want map[string]string
		namespaces  model.NamespaceOptions
	}{
		{nil, others, model.NamespaceOptions{}},
		{nil, map[string]string{"kernel.msgmax": "1"}, model.NamespaceOptions{Network: model.NamespaceNode}},
		{nil, nil, model.NamespaceOptions{Network: model.NamespaceNode, IPC: model.NamespaceNode}},
		{
			map[string]string{"net/ipv4/ip_unprivileged_port_start": "80"},
			map[string]string{"net/ipv4/ip_unprivileged_port_start": "80", "kernel.msgmax": "1"}, model.NamespaceOptions{},
		},
	} {
		if got := Sysctls(c.asked, others, c.namespaces); !maps.Equal(got, c.want) {
			t.Errorf("asked for %v in %+v: got %v, want %v", c.asked, c.namespaces, got, c.want)
		}
	}
}

// TestTheTerminalsOfAContainerAreBounded: but not those of the kernel of a sandbox, such as gVisor's.
func TestTheTerminalsOfAContainerAreBounded(t *testing.T) {
	for sandbox, want := range map[bool]bool{false: true, true: false} {
		in := input(t)
		in.Handler.InSandbox = sandbox
		mounts := build(t, in).Spec.Mounts
		i := slices.IndexFunc(mounts, func(m specs.Mount) bool { return m.Destination == "/dev/pts" })
		if got := slices.Contains(mounts[i].Options, "max=1024"); got != want {
			t.Errorf("in a sandbox %v: the options are %q", sandbox, mounts[i].Options)
		}
	}
}

func TestCgroupsAreWritableWhereTheHandlerSaysSoAndNoOtherIsSeen(t *testing.T) {
	access := func(writable, privileged bool, version cgroup.Version) string {
		in := input(t)
		in.Host.Cgroups = hierarchies(t, version)
		in.Handler.CgroupWritable, in.Container.Security.Privileged = writable, privileged
		mounts := build(t, in).Spec.Mounts
		i := slices.IndexFunc(mounts, func(m specs.Mount) bool { return m.Destination == "/sys/fs/cgroup" })
		return mounts[i].Options[len(mounts[i].Options)-1]
	}
	for _, c := range []struct {
		writable, privileged bool
		version              cgroup.Version
		want                 string
	}{
		{false, false, cgroup.V2, "ro"}, {true, false, cgroup.V2, "rw"}, {true, false, cgroup.V1, "ro"},
		{false, true, cgroup.V1, "rw"},
	} {
		if got := access(c.writable, c.privileged, c.version); got != c.want {
			t.Errorf("%+v: the mount is %s", c, got)
		}
	}
}

// TestAMountOfTheNodesCgroupsKeepsTheirOptions: without a cgroup namespace, a mount without them takes them from the
// node.
func TestAMountOfTheNodesCgroupsKeepsTheirOptions(t *testing.T) {
	for _, c := range []struct {
		privileged bool
		version    cgroup.Version
		want       bool
	}{{true, cgroup.V2, true}, {false, cgroup.V2, false}, {true, cgroup.V1, false}} {
		in := input(t)
		in.Host.Cgroups = hierarchies(t, c.version)
		in.Host.UnifiedOptions = func() ([]string, error) { return []string{"nsdelegate", "memory_recursiveprot"}, nil }
		in.Container.Security.Privileged = c.privileged
		for _, m := range build(t, in).Spec.Mounts {
			has := slices.Contains(m.Options, "nsdelegate") && slices.Contains(m.Options, "memory_recursiveprot")
			if has != (c.want && m.Destination == "/sys/fs/cgroup") {
				t.Errorf("%+v: %s has the options %v", c, m.Destination, m.Options)
			}
		}
	}
}

func TestAMissingHostPathIsMadeWhereThatIsAskedFor(t *testing.T) {
	for _, c := range []struct{ create, refused, want bool }{{}, {true, false, true}, {true, true, false}} {
		path := filepath.Join(t.TempDir(), "a/b")
		in := input(t)
		in.Container.CreateHostPaths = c.create
		in.Container.Mounts = []model.Mount{{HostPath: path + "/", ContainerPath: "/m"}}
		if c.refused {
			in.Handler.RefuseMissing = []string{path}
		}
		_, err := Build(t.Context(), in)
		if c.want != (err == nil) || !c.want && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err := os.Stat(path); c.want == errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: the path: %v", c, err)
		}
	}
}

func TestAPrivilegedContainerWithoutDevicesMayMakeThem(t *testing.T) {
	in := input(t)
	in.Container.Security.Privileged, in.Handler.PrivilegedWithoutHostDevices = true, true
	for _, allowed := range []bool{false, true} {
		in.Handler.PrivilegedAllDevicesAllowed = allowed
		linux := build(t, in).Spec.Linux
		if len(linux.Devices) > 0 || len(linux.Resources.Devices) != 1 || linux.Resources.Devices[0].Allow != allowed {
			t.Errorf("allowed %v: devices %+v, rules %+v", allowed, linux.Devices, linux.Resources.Devices)
		}
	}
}

func TestADefaultDeviceYieldsToTheContainersOwn(t *testing.T) {
	in := input(t)
	in.Handler.Devices = []model.Device{
		{HostPath: "/dev/full", ContainerPath: "/dev/x", Permissions: "rwm"},
		{HostPath: "/dev/no-such-device", ContainerPath: "/dev/y", Permissions: "rwm"},
	}
	in.Handler.DeviceOwnership = true
	in.Container.Security.RunAsUser = ptr(int64(7))
	out := build(t, in)
	if len(out.Spec.Linux.Devices) != 1 || *out.Spec.Linux.Devices[0].UID != 7 || len(out.Warnings) != 1 {
		t.Errorf("devices %+v, warnings %q", out.Spec.Linux.Devices, out.Warnings)
	}
	in.Container.Devices = []model.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/x", Permissions: "r"}}
	out = build(t, in)
	rules := out.Spec.Linux.Resources.Devices
	if len(out.Spec.Linux.Devices) != 1 || out.Spec.Linux.Devices[0].Minor != 5 || len(rules) != 2 ||
		*rules[1].Minor != 5 {
		t.Errorf("devices %+v, rules %+v", out.Spec.Linux.Devices, rules)
	}
}

// TestADeviceOfAUserNamespaceIsTheHosts: a mount where its path differs, and with a warning where it cannot have the
// owner that it should have.
func TestADeviceOfAUserNamespaceIsTheHosts(t *testing.T) {
	asroot.Need(t, "device nodes")
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	must(t, unix.Mknod(own, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
	write(t, filepath.Join(dir, "vendor.json"), `{"cdiVersion":"0.6.0","kind":"vendor.com/gpu","devices":[
		{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/zero"},{"path":"/dev/full"}]}},
		{"name":"none","containerEdits":{"deviceNodes":[{"path":"/dev/no-such","type":"c","major":1,"minor":5}]}}]}`)
	ids := []model.IDMapping{{HostID: 200000, Length: 65536}}
	in := input(t)
	in.Container.Security.Namespaces.User = &model.UserNamespace{Mode: model.NamespacePod, UIDs: ids, GIDs: ids}
	in.Container.Devices = []model.Device{
		{HostPath: own, ContainerPath: "/dev/mine", Permissions: "r"}, {HostPath: "/dev/null", ContainerPath: "/x"},
	}
	in.Handler.Devices = []model.Device{{HostPath: "/dev/random", ContainerPath: "/dev/given", Permissions: "r"}}
	in.Handler.DeviceOwnership = true
	in.Container.Security.RunAsUser = new(int64(7))
	in.Handler.CDISpecDirs = []string{dir}
	in.Container.CDIDevices = []string{"vendor.com/gpu=0"}
	out := build(t, in)
	if d := out.Spec.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/full" {
		t.Errorf("devices %+v", d)
	}
	if len(out.Spec.Linux.Resources.Devices) != 6 {
		t.Errorf("rules %+v", out.Spec.Linux.Resources.Devices)
	}
	for at, source := range map[string]string{
		"/dev/mine": own, "/x": "/dev/null", "/dev/given": "/dev/random", "/dev/gpu0": "/dev/zero",
	} {
		if !slices.ContainsFunc(out.Spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == at && m.Source == source && slices.Equal(m.Options, []string{"bind", "rprivate"})
		}) {
			t.Errorf("%s is no mount of %s: %+v", at, source, out.Spec.Mounts)
		}
	}
	if len(out.Warnings) != 1 || !strings.HasPrefix(out.Warnings[0], "device /dev/mine: it keeps the owner 0:0 ") {
		t.Errorf("warnings %q", out.Warnings)
	}
	in.Container.CDIDevices = []string{"vendor.com/gpu=none"}
	if _, err := Build(t.Context(), in); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "device /dev/no-such: ") {
		t.Errorf("a device that the host does not have: %v", err)
	}
}
