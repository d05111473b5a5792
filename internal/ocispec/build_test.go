package ocispec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/hostpath/mutetest"
	"berth/internal/model"
	"berth/internal/throwaway"
)

const passwd = `root:x:0:0:root:/root:/bin/sh
web:x:1000:1000::/srv/web:/bin/sh
lone:x:1001:7::/:/bin/sh
`

const group = `root:x:0:
web:x:1000:
staff:x:50:web,lone
image:x:50000:web
`

// input is a container that only says what to run, in a root file system with two users.
func input(t *testing.T) Input {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/passwd"), passwd)
	write(t, filepath.Join(root, "etc/group"), group)
	return Input{
		SandboxID: "pod1", ContainerID: "ctr1",
		Sandbox: &model.SandboxConfig{
			Metadata: model.SandboxMetadata{Name: "p", Namespace: "ns", UID: "u"}, Hostname: "podhost",
		},
		Container: &model.ContainerConfig{
			Metadata: model.ContainerMetadata{Name: "c"},
			Command:  []string{"/bin/true"},
			Security: model.ContainerSecurity{Namespaces: model.NamespaceOptions{PID: model.NamespaceContainer}},
		},
		Rootfs:      root,
		Namespaces:  Namespaces{Network: "/run/ns/net", IPC: "/run/ns/ipc", UTS: "/run/ns/uts"},
		CgroupsPath: "/pods/ctr1",
		Host:        host(t),
	}
}

// host is this node, made independent of what it happens to allow.
func host(t *testing.T) *Host {
	t.Helper()
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	same := *h
	same.AppArmor, same.SELinux = false, false
	return &same
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func build(t *testing.T, in Input) *Output {
	t.Helper()
	out, err := Build(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func TestCommandAndArgumentsMergeAsInKubernetes(t *testing.T) {
	image := imagespec.ImageConfig{Entrypoint: []string{"entry"}, Cmd: []string{"default"}}
	none := imagespec.ImageConfig{Entrypoint: []string{""}, Cmd: []string{"default"}} // ENTRYPOINT [""]
	for _, c := range []struct {
		image               imagespec.ImageConfig
		command, args, want []string
	}{
		{image, nil, nil, []string{"entry", "default"}},
		{image, nil, []string{"arg"}, []string{"entry", "arg"}},
		{image, []string{"cmd"}, nil, []string{"cmd"}},
		{image, []string{"cmd"}, []string{"arg"}, []string{"cmd", "arg"}},
		{none, nil, nil, []string{"default"}},
		{none, nil, []string{"arg"}, []string{"arg"}},
		{none, []string{"cmd"}, nil, []string{"cmd"}},
	} {
		in := input(t)
		in.Image, in.Container.Command, in.Container.Args = c.image, c.command, c.args
		if got := build(t, in).Spec.Process.Args; !slices.Equal(got, c.want) {
			t.Errorf("command %q, args %q: runs %q, want %q", c.command, c.args, got, c.want)
		}
	}
}

// TestTheLaterOfTwoMountsAtAPathIsMade: a kubelet gives the volumes of a pod after the mounts of a device plugin.
func TestTheLaterOfTwoMountsAtAPathIsMade(t *testing.T) {
	in := input(t)
	first, second := t.TempDir(), t.TempDir()
	in.Container.Mounts = []model.Mount{
		{HostPath: first, ContainerPath: "/dev/shm"}, {HostPath: second, ContainerPath: "/dev/shm/"},
	}
	out := build(t, in)
	var sources []string
	for _, m := range out.Spec.Mounts {
		if m.Destination == "/dev/shm" {
			sources = append(sources, m.Source)
		}
	}
	if !slices.Equal(sources, []string{second}) || !strings.Contains(strings.Join(out.Warnings, "\n"), first) {
		t.Errorf("at /dev/shm is %q, warnings %q", sources, out.Warnings)
	}
	in.Container.Mounts[0].Image, in.ImageMounts = &model.ImageSpec{}, map[string]ImageMount{"/dev/shm": {Path: first}}
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("where one is an image: %v", err)
	}
}

func TestEnvironmentKeepsOrderAndTheClientWins(t *testing.T) {
	in := input(t)
	in.Image.Env = []string{"A=image", "PATH=/bin", "B=image", "broken", "=odd"}
	in.Container.Env = []model.EnvVar{{Key: "C", Value: "x=y"}, {Key: "A", Value: "client"}, {Key: "C", Value: "last"}}
	got := build(t, in).Spec.Process.Env
	want := []string{"PATH=/bin", "HOSTNAME=podhost", "A=client", "B=image", "C=last", "HOME=/root"}
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}

	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	in = input(t)
	in.Container.TTY = true
	in.Namespaces.UTS = ""
	got = build(t, in).Spec.Process.Env
	want = []string{defaultPath, "TERM=xterm", "HOSTNAME=" + node, "HOME=/root"}
	if !slices.Equal(got, want) {
		t.Errorf("environment with a terminal in the node's UTS namespace %q, want %q", got, want)
	}
}

// TestTheNodesHostNameIsTheOneThatItHasNow: a host name may come after berthd has started, as from DHCP. Seen to fail
// where the name was read once.
func TestTheNodesHostNameIsTheOneThatItHasNow(t *testing.T) {
	asroot.Need(t, "a host name is set in a namespace")
	in := input(t)
	in.Namespaces.UTS = ""
	err := throwaway.Thread(func() error {
		for _, err := range []error{unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte("renamed"))} {
			if err != nil {
				return err
			}
		}
		out, err := Build(t.Context(), in)
		if err == nil && !slices.Contains(out.Spec.Process.Env, "HOSTNAME=renamed") {
			err = fmt.Errorf("environment %q", out.Spec.Process.Env)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUsersAreResolvedInTheImage(t *testing.T) {
	for _, c := range []struct {
		name   string
		image  string
		change func(*model.ContainerSecurity)
		want   model.User
		home   string
	}{
		{name: "nobody says", want: model.User{Groups: []int64{0}}, home: "/root"},
		{name: "image by name", image: "web", want: model.User{UID: 1000, GID: 1000, Groups: []int64{1000, 50, 50000}},
			home: "/srv/web"},
		{name: "image by name and group", image: "web:staff",
			want: model.User{UID: 1000, GID: 50, Groups: []int64{50, 50000}}, home: "/srv/web"},
		{name: "image by number", image: "1001", want: model.User{UID: 1001, GID: 7, Groups: []int64{7, 50}}, home: "/"},
		{name: "a number that is not in the image", image: "4242",
			want: model.User{UID: 4242, Groups: []int64{0}}, home: "/"},
		{name: "number and group number", image: "4242:99",
			want: model.User{UID: 4242, GID: 99, Groups: []int64{99}}, home: "/"},
		{name: "run_as_user beats the image", image: "web",
			change: func(s *model.ContainerSecurity) { s.RunAsUser = ptr(int64(1001)) },
			want:   model.User{UID: 1001, GID: 7, Groups: []int64{7, 50}}, home: "/"},
		{name: "run_as_username and group", change: func(s *model.ContainerSecurity) {
			s.RunAsUsername, s.RunAsGroup = "web", ptr(int64(3000))
			s.SupplementalGroups = []int64{1234, 50}
		}, want: model.User{UID: 1000, GID: 3000, Groups: []int64{3000, 50, 50000, 1234}}, home: "/srv/web"},
		{name: "strict groups", change: func(s *model.ContainerSecurity) {
			s.RunAsUsername, s.SupplementalGroups, s.SupplementalGroupsStrict = "web", []int64{1234}, true
		}, want: model.User{UID: 1000, GID: 1000, Groups: []int64{1000, 1234}}, home: "/srv/web"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(t)
			in.Image.User = c.image
			if c.change != nil {
				c.change(&in.Container.Security)
			}
			out := build(t, in)
			if out.User.UID != c.want.UID || out.User.GID != c.want.GID || !slices.Equal(out.User.Groups, c.want.Groups) {
				t.Errorf("user %+v, want %+v", out.User, c.want)
			}
			if u := out.Spec.Process.User; int64(u.UID) != c.want.UID || int64(u.GID) != c.want.GID ||
				len(u.AdditionalGids) != len(c.want.Groups) {
				t.Errorf("spec has %+v, want %+v", u, c.want)
			}
			if !slices.Contains(out.Spec.Process.Env, "HOME="+c.home) {
				t.Errorf("environment %q has no HOME=%s", out.Spec.Process.Env, c.home)
			}
		})
	}
}

func TestUserDatabasesCannotLeadOutOfTheImage(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	write(t, outside, "spy:x:7:7::/:/bin/sh\n")
	in := input(t)
	path := filepath.Join(in.Rootfs, passwdFile)
	must(t, os.Remove(path))
	must(t, os.Symlink(outside, path))
	in.Image.User = "spy"
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a link out of the image: %v, want an unknown user", err)
	}
	must(t, os.Remove(path))
	write(t, filepath.Join(in.Rootfs, "usr/etc/passwd"), "spy:x:8:8::/:/bin/sh\n")
	must(t, os.Symlink("/usr/etc/passwd", path))
	if out := build(t, in); out.User.UID != 8 {
		t.Errorf("a link inside the image: user %+v, want 8", out.User)
	}
	must(t, os.Remove(path))
	must(t, unix.Mkfifo(path, 0o644))
	if _, err := Build(t.Context(), in); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe for /etc/passwd: %v", err)
	}
	must(t, os.Remove(path))
	write(t, path, "")
	must(t, os.Truncate(path, maxDatabase+1))
	if _, err := Build(t.Context(), in); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("a huge /etc/passwd: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	type changed = *Input
	broken := filepath.Join(t.TempDir(), "broken.json")
	write(t, broken, "{\n\"defaultAction\": }")
	notify := filepath.Join(t.TempDir(), "notify.json")
	write(t, notify, `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NOTIFY"}]}`)
	docker := filepath.Join(t.TempDir(), "docker.json")
	write(t, docker, `{"defaultAction":"SCMP_ACT_ERRNO","archMap":[]}`)
	seccomp := func(path string) func(changed) {
		return func(in changed) {
			in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: path}
		}
	}
	mount := func(m model.Mount) func(changed) { return func(in changed) { in.Container.Mounts = []model.Mount{m} } }
	limit := func(r model.Resources) func(changed) { return func(in changed) { in.Container.Resources = &r } }
	for _, c := range []struct {
		name   string
		change func(changed)
		says   string
		kind   error
	}{
		{"no command", func(in changed) { in.Container.Command = nil }, "command", errdefs.ErrInvalidArgument},
		{"NUL in an argument", func(in changed) {
			in.Container.Args = []string{"a\x00b"}
		}, "NUL", errdefs.ErrInvalidArgument},
		{"environment without a name", func(in changed) {
			in.Container.Env = []model.EnvVar{{Value: "x"}}
		}, "environment", errdefs.ErrInvalidArgument},
		{"unknown user", func(in changed) { in.Image.User = "ghost" }, `"ghost" is not in /etc/passwd`,
			errdefs.ErrInvalidArgument},
		{"unknown group", func(in changed) { in.Image.User = "web:ghosts" }, `"ghosts" is not in /etc/group`,
			errdefs.ErrInvalidArgument},
		{"group without a user", func(in changed) {
			in.Container.Security.RunAsGroup = ptr(int64(1))
		}, "security.runAsGroup: ", errdefs.ErrInvalidArgument},
		{"two users", func(in changed) {
			in.Container.Security.RunAsUser, in.Container.Security.RunAsUsername = ptr(int64(1)), "web"
		}, "exclude", errdefs.ErrInvalidArgument},
		{"negative user", func(in changed) {
			in.Container.Security.RunAsUser = ptr(int64(-1))
		}, "security.runAsUser: ", errdefs.ErrInvalidArgument},
		{"huge group", func(in changed) {
			in.Container.Security.SupplementalGroups = []int64{1 << 40}
		}, "security.supplementalGroups[", errdefs.ErrInvalidArgument},
		{"unknown capability", func(in changed) {
			in.Container.Security.Capabilities.Add = []string{"FLY"}
		}, `"FLY"`, errdefs.ErrInvalidArgument},
		{"missing source", mount(model.Mount{ContainerPath: "/data", HostPath: "/no/such/path"}),
			"/no/such/path", errdefs.ErrInvalidArgument},
		{"relative source", mount(model.Mount{ContainerPath: "/data", HostPath: "tmp"}), `"tmp"`, errdefs.ErrInvalidArgument},
		{"relative target", mount(model.Mount{ContainerPath: "data", HostPath: "/tmp"}), "not absolute",
			errdefs.ErrInvalidArgument},
		{"mount over the root", mount(model.Mount{ContainerPath: "/x/..", HostPath: "/tmp"}),
			"root", errdefs.ErrInvalidArgument},
		{"recursively read-only and writable", mount(model.Mount{ContainerPath: "/d", HostPath: "/tmp",
			RecursiveReadOnly: true}), "recursively", errdefs.ErrInvalidArgument},
		{"unmounted image", mount(model.Mount{ContainerPath: "/d", Image: &model.ImageSpec{Image: "img"}}),
			"img", errdefs.ErrFailedPrecondition},
		{"half an ID mapping", mount(model.Mount{ContainerPath: "/d", HostPath: "/tmp",
			UIDMappings: []model.IDMapping{{Length: 1}}}), "GID mappings", errdefs.ErrInvalidArgument},
		{"missing device", func(in changed) {
			in.Container.Devices = []model.Device{{HostPath: "/dev/nothing"}}
		}, "/dev/nothing", errdefs.ErrInvalidArgument},
		{"a file for a device", func(in changed) {
			in.Container.Devices = []model.Device{{HostPath: "/etc/passwd"}}
		}, "neither a device", errdefs.ErrInvalidArgument},
		{"odd permissions", func(in changed) {
			in.Container.Devices = []model.Device{{HostPath: "/dev/null", Permissions: "rx"}}
		}, "permissions", errdefs.ErrInvalidArgument},
		{"missing CDI device", func(in changed) {
			in.Container.CDIDevices = []string{"vendor.com/gpu=0"}
		}, "vendor.com/gpu=0", errdefs.ErrFailedPrecondition},
		{"broken seccomp profile", seccomp(broken), broken + ": line 2", errdefs.ErrInvalidArgument},
		{"missing seccomp profile", seccomp("/no/profile.json"), "/no/profile.json", errdefs.ErrInvalidArgument},
		{"relative seccomp profile", seccomp("p.json"), "p.json", errdefs.ErrInvalidArgument},
		{"seccomp notification", seccomp(notify), "SCMP_ACT_NOTIFY", errdefs.ErrInvalidArgument},
		{"seccomp profile of Docker", seccomp(docker), "archMap", errdefs.ErrInvalidArgument},
		{"AppArmor that is not there", func(in changed) {
			in.Container.Security.AppArmor = &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "mine"}
		}, `apparmor profile "mine"`, errdefs.ErrFailedPrecondition},
		{"PID namespace without a path", func(in changed) {
			in.Container.Security.Namespaces.PID = model.NamespacePod
		}, "PID", errdefs.ErrInvalidArgument},
		{"relative masked path", func(in changed) {
			in.Container.Security.MaskedPaths = []string{"proc"}
		}, `"proc"`, errdefs.ErrInvalidArgument},
		{"negative memory", limit(model.Resources{MemoryLimit: -5}), "container.resources.memoryLimit: ",
			errdefs.ErrInvalidArgument},
		{"swap below memory", limit(model.Resources{MemoryLimit: 10 << 20, MemorySwap: 1}),
			"container.resources.memorySwap: ", errdefs.ErrInvalidArgument},
		{"negative shares", limit(model.Resources{CPUShares: -1}), "container.resources.cpuShares: ",
			errdefs.ErrInvalidArgument},
		{"short period", limit(model.Resources{CPUPeriod: 1}), "container.resources.cpuPeriod: ", errdefs.ErrInvalidArgument},
		{"short quota", limit(model.Resources{CPUQuota: -7}), "container.resources.cpuQuota: ", errdefs.ErrInvalidArgument},
		{"long cpuset", limit(model.Resources{CPUSetMems: strings.Repeat("0,", 1<<15) + "0"}),
			"container.resources.cpusetMems: ", errdefs.ErrInvalidArgument},
		{"odd cpuset", limit(model.Resources{CPUSetCPUs: "3-1"}), "container.resources.cpusetCPUs: ",
			errdefs.ErrInvalidArgument},
		{"odd page size", limit(model.Resources{HugepageLimit: []model.HugepageLimit{{PageSize: "big"}}}),
			"hugepage", errdefs.ErrInvalidArgument},
		{"absurd OOM score", limit(model.Resources{OOMScoreAdj: 4000}), "container.resources.oomScoreAdj: ",
			errdefs.ErrInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(t)
			c.change(&in)
			_, err := Build(t.Context(), in)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one of %v that says %q", err, c.kind, c.says)
			}
		})
	}
}

func TestMountsReplaceOursAndParentsComeFirst(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	in := input(t)
	in.Files = PodFiles{Hosts: "/pod/hosts", ResolvConf: "/pod/resolv.conf", Hostname: "/pod/hostname", Shm: "/pod/shm"}
	in.Container.Mounts = []model.Mount{
		{ContainerPath: "/a/b/c", HostPath: dir},
		{ContainerPath: "/a/", HostPath: link, Readonly: true},
		{ContainerPath: "/etc/hosts", HostPath: dir},
		{ContainerPath: "/dev/shm", HostPath: dir},
		{ContainerPath: "/sys/fs/cgroup", HostPath: "/sys/fs/cgroup", Readonly: true, RecursiveReadOnly: true},
	}
	mounts := build(t, in).Spec.Mounts
	at := map[string]int{}
	for i, m := range mounts {
		if before, twice := at[m.Destination]; twice {
			t.Errorf("%s is mounted twice, at %d and %d", m.Destination, before, i)
		}
		at[m.Destination] = i
	}
	for _, p := range []string{"/a", "/etc/hosts", "/dev/shm"} {
		if got := mounts[at[p]].Source; got != dir {
			t.Errorf("%s has the source %s, want %s", p, got, dir)
		}
	}
	if at["/a"] > at["/a/b/c"] || at["/dev"] > at["/dev/pts"] || at["/sys"] > at["/sys/fs/cgroup"] {
		t.Errorf("children before parents: %v", at)
	}
	// What the machine's mount of the directory has comes after these.
	if m := mounts[at["/a"]]; !slices.Equal(m.Options[:min(3, len(m.Options))], []string{"rbind", "rprivate", "ro"}) {
		t.Errorf("read-only mount has options %q", m.Options)
	}
	if m := mounts[at["/sys/fs/cgroup"]]; m.Type != "bind" || !slices.Contains(m.Options, "rro") {
		t.Errorf("our cgroup mount was not replaced: %+v", m)
	}
	if m := mounts[at["/etc/resolv.conf"]]; m.Source != "/pod/resolv.conf" || !slices.Contains(m.Options, "rw") {
		t.Errorf("resolv.conf: %+v", m)
	}

	in = input(t)
	in.Files.ResolvConf = "/pod/resolv.conf"
	in.Container.Security.ReadonlyRootfs = true
	in.Container.Mounts = []model.Mount{{ContainerPath: "/dev", HostPath: "/dev"}}
	for _, m := range build(t, in).Spec.Mounts {
		if strings.HasPrefix(m.Destination, "/dev/") {
			t.Errorf("%s is mounted over the host's /dev", m.Destination)
		}
		if m.Destination == "/etc/resolv.conf" && !slices.Contains(m.Options, "ro") {
			t.Errorf("resolv.conf in a read-only root: %q", m.Options)
		}
	}
}

func TestPropagationNeedsASharedMount(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := t.TempDir()
	must(t, unix.Mount("test", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	try := func(p model.Propagation) (*Output, error) {
		in := input(t)
		in.Container.Mounts = []model.Mount{{ContainerPath: "/data", HostPath: dir, Propagation: p}}
		return Build(t.Context(), in)
	}
	must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	for _, p := range []model.Propagation{model.PropagationHostToContainer, model.PropagationBidirectional} {
		if _, err := try(p); !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s from a private mount: %v", p, err)
		}
	}
	must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	for p, want := range map[model.Propagation]string{
		model.PropagationHostToContainer: "rslave", model.PropagationBidirectional: "rshared",
	} {
		out, err := try(p)
		must(t, err)
		last := out.Spec.Mounts[slices.IndexFunc(out.Spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == "/data"
		})]
		if !slices.Contains(last.Options, want) || out.Spec.Linux.RootfsPropagation != want {
			t.Errorf("%s: options %q, root %q, want %s", p, last.Options, out.Spec.Linux.RootfsPropagation, want)
		}
	}
}

func TestImageMountsAreReadOnlyAndStayInTheImage(t *testing.T) {
	image := t.TempDir()
	write(t, filepath.Join(image, "sub/file"), "x")
	must(t, os.Symlink("/etc", filepath.Join(image, "out")))
	try := func(sub string, remote bool) (*Output, error) {
		in := input(t)
		in.ImageMounts = map[string]ImageMount{"/img": {Path: image, Remote: remote}}
		in.Container.Mounts = []model.Mount{{ContainerPath: "/img", Image: &model.ImageSpec{Image: "i"}, ImageSubPath: sub}}
		return Build(t.Context(), in)
	}
	for _, remote := range []bool{false, true} {
		out, err := try("sub", remote)
		must(t, err)
		m := out.Spec.Mounts[slices.IndexFunc(out.Spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/img" })]
		if m.Source != filepath.Join(image, "sub") || !slices.Contains(m.Options, "ro") {
			t.Errorf("mount %+v", m)
		}
		for _, sub := range []string{"../up", "/sub", "nothing", "out", "sub/file/below"} {
			if _, err := try(sub, remote); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("sub path %q, remote %v: %v", sub, remote, err)
			}
		}
	}
}

// TestASubPathOfARemoteImageThatDoesNotAnswer is looked for by a child, which is given up. Seen to fail when this
// process looked for it: a thread of it waited, which nothing ends.
func TestASubPathOfARemoteImageThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	f := mutetest.Mount(t, t.TempDir())
	f.Mute()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	b := &builder{ctx: ctx, in: Input{ImageMounts: map[string]ImageMount{"/img": {Path: f.Dir, Remote: true}}}}
	m := &model.Mount{ContainerPath: "/img", Image: &model.ImageSpec{Image: "i"}, ImageSubPath: "sub"}
	ended := make(chan error, 1)
	go func() {
		_, err := b.imageSource(m)
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errdefs.IsUnavailable(err) {
			t.Errorf("error %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the call does not end")
	}
}

// TestImageMountsAreMappedOnceOnly: an image is mounted on the host with the mapping of its pod, which a kubelet
// copies to every mount.
func TestImageMountsAreMappedOnceOnly(t *testing.T) {
	ids := func(host uint32) []model.IDMapping { return []model.IDMapping{{HostID: host, Length: 65536}} }
	try := func(asked []model.IDMapping, user *model.UserNamespace) (specs.Mount, error) {
		in := input(t)
		in.Sandbox.Security.Namespaces.User, in.Container.Security.Namespaces.User = user, user
		in.Namespaces.User = "/proc/self/ns/user"
		in.ImageMounts = map[string]ImageMount{"/img": {Path: t.TempDir()}}
		in.Container.Mounts = []model.Mount{{
			ContainerPath: "/img", Image: &model.ImageSpec{Image: "i"}, UIDMappings: asked, GIDMappings: asked,
		}}
		out, err := Build(t.Context(), in)
		if err != nil {
			return specs.Mount{}, err
		}
		return out.Spec.Mounts[slices.IndexFunc(out.Spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == "/img"
		})], nil
	}
	user := &model.UserNamespace{Mode: model.NamespacePod, UIDs: ids(200000), GIDs: ids(200000)}
	m, err := try(ids(200000), user)
	must(t, err)
	if len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 || slices.Contains(m.Options, "idmap") {
		t.Errorf("the image is mapped again: %+v", m)
	}
	for name, u := range map[string]*model.UserNamespace{"another mapping": user, "a pod without user namespace": nil} {
		if _, err := try(ids(300000), u); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCapabilitiesAreTheDefaultsChanged(t *testing.T) {
	h := host(t)
	for _, c := range []struct {
		name string
		caps model.Capabilities
		has  []string
		not  []string
		n    int
	}{
		{name: "defaults", has: DefaultCapabilities, not: []string{"CAP_SYS_ADMIN"}, n: 14},
		{name: "add", caps: model.Capabilities{Add: []string{"net_admin", "CAP_SYS_TIME"}},
			has: []string{"CAP_NET_ADMIN", "CAP_SYS_TIME"}, n: 16},
		{name: "drop", caps: model.Capabilities{Drop: []string{"CHOWN"}}, not: []string{"CAP_CHOWN"}, n: 13},
		{name: "drop all", caps: model.Capabilities{Drop: []string{"ALL"}}, n: 0},
		{name: "drop all but one", caps: model.Capabilities{Drop: []string{"all"}, Add: []string{"CHOWN"}},
			has: []string{"CAP_CHOWN"}, n: 1},
		{name: "add all but one", caps: model.Capabilities{Add: []string{"ALL"}, Drop: []string{"CHOWN"}},
			not: []string{"CAP_CHOWN"}, n: len(h.Capabilities) - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(t)
			in.Container.Security.Capabilities = c.caps
			got := build(t, in).Spec.Process.Capabilities
			if len(got.Bounding) != c.n || len(got.Inheritable) != 0 || len(got.Ambient) != 0 {
				t.Errorf("%d capabilities, want %d: %+v", len(got.Bounding), c.n, got)
			}
			for _, name := range c.has {
				if !slices.Contains(got.Effective, name) || !slices.Contains(got.Permitted, name) {
					t.Errorf("%s is missing", name)
				}
			}
			for _, name := range c.not {
				if slices.Contains(got.Bounding, name) {
					t.Errorf("%s is there", name)
				}
			}
		})
	}
	in := input(t)
	in.Container.Security.Capabilities = model.Capabilities{AddAmbient: []string{"NET_ADMIN"}}
	got := build(t, in).Spec.Process.Capabilities
	for _, set := range [][]string{got.Bounding, got.Effective, got.Permitted, got.Inheritable, got.Ambient} {
		if !slices.Contains(set, "CAP_NET_ADMIN") {
			t.Errorf("an ambient capability is not in each set: %+v", got)
		}
	}
	in = input(t)
	few := *in.Host
	few.Capabilities = []string{"CAP_CHOWN"}
	in.Host = &few
	in.Container.Security.Capabilities = model.Capabilities{Add: []string{"SYS_ADMIN"}}
	out := build(t, in)
	if !slices.Equal(out.Spec.Process.Capabilities.Bounding, few.Capabilities) || len(out.Warnings) != 14 {
		t.Errorf("capabilities that the runtime lacks: %+v, warnings %q", out.Spec.Process.Capabilities, out.Warnings)
	}
}

func TestPrivilegedIsUnconfined(t *testing.T) {
	in := input(t)
	in.Container.Security.Privileged = true
	in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileRuntimeDefault}
	in.Container.Security.MaskedPaths = []string{"/proc/kcore"}
	in.Container.Security.Capabilities.Drop = []string{"ALL"}
	spec := build(t, in).Spec
	if spec.Linux.Seccomp != nil || spec.Linux.MaskedPaths != nil || spec.Linux.ReadonlyPaths != nil {
		t.Error("a privileged container is filtered or masked")
	}
	if !slices.Equal(spec.Process.Capabilities.Bounding, in.Host.Capabilities) {
		t.Errorf("capabilities %v, want all of the host's", spec.Process.Capabilities.Bounding)
	}
	if len(spec.Linux.Devices) < 5 || !spec.Linux.Resources.Devices[0].Allow {
		t.Errorf("%d devices, rules %+v", len(spec.Linux.Devices), spec.Linux.Resources.Devices)
	}
	for _, d := range spec.Linux.Devices {
		if strings.HasPrefix(d.Path, "/dev/pts/") || d.Path == "/dev/console" {
			t.Errorf("%s of the host", d.Path)
		}
	}
	in.Handler.PrivilegedWithoutHostDevices = true
	if spec := build(t, in).Spec; len(spec.Linux.Devices) != 0 || spec.Linux.Resources.Devices[0].Allow {
		t.Error("host devices though the handler gives none")
	}
}

func TestDevicesComeWithTheirRules(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	in := input(t)
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	must(t, unix.Mknod(filepath.Join(dir, "sub/zero"), unix.S_IFCHR|0o640, int(unix.Mkdev(1, 5))))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.Symlink("/dev/full", filepath.Join(dir, "link")))
	in.Container.Devices = []model.Device{
		{HostPath: filepath.Join(dir, "link"), ContainerPath: "/dev/linked", Permissions: "r"},
		{HostPath: dir, ContainerPath: "/dev/tree"},
	}
	linux := build(t, in).Spec.Linux
	if len(linux.Devices) != 2 || linux.Devices[0].Path != "/dev/linked" || linux.Devices[1].Path != "/dev/tree/sub/zero" {
		t.Fatalf("devices %+v", linux.Devices)
	}
	rules := linux.Resources.Devices
	if len(rules) != 3 || rules[0].Allow || rules[1].Access != "r" || *rules[1].Minor != 7 || rules[2].Access != "rwm" {
		t.Errorf("rules %+v", rules)
	}
}

func TestCDIDevicesAreInjected(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "vendor.json"), `{"cdiVersion":"0.6.0","kind":"vendor.com/gpu","devices":[{"name":"0",
		"containerEdits":{"env":["GPU=0"],"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/zero"}],
		"mounts":[{"hostPath":"/tmp","containerPath":"/gpu","options":["ro","bind"]}]}}]}`)
	in := input(t)
	in.Handler.CDISpecDirs = []string{dir}
	in.Container.CDIDevices = []string{"vendor.com/gpu=0"}
	in.Container.Annotations = map[string]string{"cdi.k8s.io/plugin": "vendor.com/gpu=0"}
	spec := build(t, in).Spec
	if !slices.Contains(spec.Process.Env, "GPU=0") || len(spec.Linux.Devices) != 1 ||
		spec.Linux.Devices[0].Path != "/dev/gpu0" {
		t.Errorf("environment %q, devices %+v", spec.Process.Env, spec.Linux.Devices)
	}
	if !slices.ContainsFunc(spec.Linux.Resources.Devices, func(d specs.LinuxDeviceCgroup) bool {
		return d.Allow && d.Minor != nil && *d.Minor == 5
	}) {
		t.Errorf("no rule for the device: %+v", spec.Linux.Resources.Devices)
	}
}

func TestEditsOfOthersAreAddedInOnePlace(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "vendor.json"), `{"cdiVersion":"0.6.0","kind":"vendor.com/gpu","devices":[
		{"name":"0","containerEdits":{"env":["GPU0=1"]}},{"name":"1","containerEdits":{"env":["GPU1=1"]}}]}`)
	in := input(t)
	in.Handler.CDISpecDirs = []string{dir}
	in.Container.Env = []model.EnvVar{{Key: "MINE", Value: "client"}}
	in.Edits = []model.Edits{
		{
			Source: "one", Env: []model.EnvVar{{Key: "MINE", Value: "plugin"}, {Key: "BOTH", Value: "x"}},
			Mounts:      []model.Mount{{ContainerPath: "/in", HostPath: "/tmp", Readonly: true}},
			Devices:     []model.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/z", Permissions: "r"}},
			Annotations: map[string]string{"vendor.com/note": "kept", "cdi.k8s.io/one": "vendor.com/gpu=1"},
			CDIDevices:  []string{"vendor.com/gpu=0"},
		},
		{
			Source: "two", Env: []model.EnvVar{{Key: "BOTH", Value: "x"}},
			Mounts:  []model.Mount{{ContainerPath: "/in", HostPath: "/tmp", Readonly: true}},
			Devices: []model.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/z", Permissions: "r"}},
		},
	}
	spec := build(t, in).Spec
	for _, want := range []string{"MINE=client", "BOTH=x", "GPU0=1", "GPU1=1"} {
		if !slices.Contains(spec.Process.Env, want) {
			t.Errorf("no %s in %q", want, spec.Process.Env)
		}
	}
	if slices.Contains(spec.Process.Env, "MINE=plugin") || spec.Annotations["vendor.com/note"] != "kept" {
		t.Errorf("environment %q, annotations %v", spec.Process.Env, spec.Annotations)
	}
	if len(spec.Linux.Devices) != 1 || spec.Linux.Devices[0].Path != "/dev/z" || len(in.Container.Mounts) != 0 {
		t.Errorf("devices %+v; the configuration was changed: %+v", spec.Linux.Devices, in.Container)
	}
	if n := len(slices.DeleteFunc(slices.Clone(spec.Mounts), func(m specs.Mount) bool {
		return m.Destination != "/in"
	})); n != 1 {
		t.Errorf("%d mounts at /in", n)
	}
	for claim, second := range map[string]model.Edits{
		"BOTH":            {Source: "two", Env: []model.EnvVar{{Key: "BOTH", Value: "y"}}},
		"/in":             {Source: "two", Mounts: []model.Mount{{ContainerPath: "/in", HostPath: "/var"}}},
		"vendor.com/note": {Source: "two", Annotations: map[string]string{"vendor.com/note": "other"}},
	} {
		in.Edits[1] = second
		_, err := Build(t.Context(), in)
		if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), claim) ||
			!strings.Contains(err.Error(), "two") {
			t.Errorf("two that disagree on %s: %v", claim, err)
		}
	}
}

func TestResourcesOfBothVersions(t *testing.T) {
	v1, v2 := *host(t), *host(t)
	v1.Cgroups, v2.Cgroups = hierarchies(t, cgroup.V1), hierarchies(t, cgroup.V2)
	v1.SwapLimits, v2.SwapLimits = false, true
	r := &model.Resources{CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 512, MemoryLimit: 64 << 20, CPUSetCPUs: "0-1,3",
		HugepageLimit: []model.HugepageLimit{{PageSize: "2MB"}}}
	out, err := Resources(r, 100, &v1)
	must(t, err)
	if *out.CPU.Period != 100000 || *out.CPU.Quota != 50000 || *out.CPU.Shares != 512 || out.CPU.Cpus != "0-1,3" ||
		*out.Memory.Limit != 64<<20 || out.Memory.Swap != nil || *out.Pids.Limit != 100 || out.HugepageLimits != nil {
		t.Errorf("v1: %+v", out)
	}
	for what, bad := range map[string]model.Resources{
		"memorySwap":     {MemoryLimit: 64 << 20, MemorySwap: 96 << 20},
		"hugepageLimits": {HugepageLimit: []model.HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}}},
	} {
		if _, err := Resources(&bad, 0, &v1); !errors.Is(err, errdefs.ErrFailedPrecondition) ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("%s on a host that cannot limit it: %v", what, err)
		}
	}
	// Seen to fail where a limit of swap that is not set counted as one above -1.
	if out, err := Resources(&model.Resources{MemoryLimit: -1}, 0, &v1); err != nil || *out.Memory.Limit != -1 {
		t.Errorf("no limit of memory on a host that cannot limit swap: %+v, %v", out, err)
	}
	r.Unified = map[string]string{"memory.high": "32M"}
	if _, err := Resources(r, 0, &v1); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("unified on v1: %v", err)
	}
	out, err = Resources(r, 0, &v2)
	must(t, err)
	if *out.Memory.Swap != 64<<20 || out.Unified["memory.high"] != "32M" || out.Pids != nil ||
		len(out.HugepageLimits) != 1 {
		t.Errorf("v2: %+v", out)
	}
	for _, name := range []string{"../x", "memory", "cgroup.procs", "", "a.b/c"} {
		r.Unified = map[string]string{name: "1"}
		if _, err := Resources(r, 0, &v2); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("unified file %q: %v", name, err)
		}
	}
	if out, err := Resources(nil, 0, &v1); err != nil || out.CPU != nil || out.Memory != nil {
		t.Errorf("no limits: %+v, %v", out, err)
	}
}

// hierarchies are those of a host with the controllers that matter.
func hierarchies(t *testing.T, v cgroup.Version) *cgroup.Hierarchies {
	t.Helper()
	mounts := "40 30 0:30 / /sys/fs/cgroup/%[1]s rw - cgroup cgroup rw,%[1]s\n"
	var text string
	for _, name := range []string{"cpu", "cpuset", "memory", "pids"} {
		text += fmt.Sprintf(mounts, name)
	}
	controllers := "cpuset cpu io memory hugetlb pids"
	h, err := cgroup.Parse(strings.NewReader(text), v == cgroup.V2, func(string) ([]byte, error) {
		return []byte(controllers), nil
	})
	must(t, err)
	return h
}

func TestUpdatesAreLaidOverWhatHolds(t *testing.T) {
	stored := &model.Resources{CPUShares: 2, MemoryLimit: 10, MemorySwap: 10, CPUSetCPUs: "0",
		HugepageLimit: []model.HugepageLimit{{PageSize: "2MB", Limit: 1}}}
	got := MergeResources(stored, &model.Resources{MemoryLimit: 20, CPUQuota: -1,
		HugepageLimit: []model.HugepageLimit{{PageSize: "2MB", Limit: 2}, {PageSize: "1GB"}},
		Unified:       map[string]string{"memory.high": "1"}})
	if got.CPUShares != 2 || got.MemoryLimit != 20 || got.MemorySwap != 20 || got.CPUQuota != -1 ||
		got.CPUSetCPUs != "0" ||
		len(got.HugepageLimit) != 2 || got.HugepageLimit[0].Limit != 2 || got.Unified["memory.high"] != "1" {
		t.Errorf("merged %+v", got)
	}
	if stored.MemoryLimit != 10 || stored.HugepageLimit[0].Limit != 1 || stored.Unified != nil {
		t.Errorf("the stored limits were written to: %+v", stored)
	}
	if MergeResources(nil, nil) == nil {
		t.Error("nothing merged with nothing is nil")
	}
}

// TestSwapFollowsAnUpdateOfMemoryAlone: who has no swap gets none, a limit that still fits stays, and without a limit
// of memory there is none of swap. Seen to fail when only a limit of memory above that of swap was followed.
func TestSwapFollowsAnUpdateOfMemoryAlone(t *testing.T) {
	host := *host(t)
	host.Cgroups, host.SwapLimits = hierarchies(t, cgroup.V2), true
	for what, c := range map[string]struct{ memory, swap, update, want int64 }{
		"no swap, less memory":          {memory: 100, swap: 100, update: 50, want: 50},
		"no swap, more memory":          {memory: 100, swap: 100, update: 200, want: 200},
		"no swap of itself":             {memory: 100, update: 50, want: 50},
		"swap, less memory":             {memory: 100, swap: 150, update: 50, want: 150},
		"swap, more memory":             {memory: 100, swap: 150, update: 120, want: 150},
		"swap, memory above both":       {memory: 100, swap: 150, update: 200, want: 200},
		"unlimited swap":                {memory: 100, swap: -1, update: 200, want: -1},
		"swap, memory without a limit":  {memory: 100, swap: 150, update: -1, want: -1},
		"no swap, memory without limit": {memory: 100, swap: 100, update: -1, want: -1},
	} {
		merged := MergeResources(&model.Resources{MemoryLimit: c.memory, MemorySwap: c.swap},
			&model.Resources{MemoryLimit: c.update})
		out, err := Resources(merged, 0, &host)
		if err != nil || *out.Memory.Limit != c.update || *out.Memory.Swap != c.want {
			t.Errorf("%s: %+v, want swap %d: %v", what, merged, c.want, err)
		}
	}
	// A limit of memory that comes back has no swap beyond it again.
	back := MergeResources(MergeResources(&model.Resources{MemoryLimit: 100, MemorySwap: 150},
		&model.Resources{MemoryLimit: -1}), &model.Resources{MemoryLimit: 100})
	if out, err := Resources(back, 0, &host); err != nil || *out.Memory.Swap != 100 {
		t.Errorf("a limit that comes back: %+v, %v", back, err)
	}
}

// TestAReservationFollowsAnUpdateOfMemoryAlone: one above the new limit becomes that limit, and one that was the limit
// stays it. Seen to fail when the reservation stayed, and the limit was refused for a value that the client cannot see.
func TestAReservationFollowsAnUpdateOfMemoryAlone(t *testing.T) {
	for what, c := range map[string]struct{ memory, reserved, update, ask, want int64 }{
		"the limit, less":       {memory: 100, reserved: 100, update: 50, want: 50},
		"the limit, more":       {memory: 100, reserved: 100, update: 200, want: 200},
		"half of it, less":      {memory: 100, reserved: 50, update: 60, want: 50},
		"half of it, far less":  {memory: 100, reserved: 50, update: 20, want: 20},
		"half of it, more":      {memory: 100, reserved: 50, update: 200, want: 50},
		"none":                  {memory: 100, update: 50},
		"-1":                    {memory: 100, reserved: -1, update: 50, want: -1},
		"without a limit":       {reserved: 100, update: 50, want: 50},
		"to no limit":           {memory: 100, reserved: 100, update: -1, want: 100},
		"no change":             {memory: 100, reserved: 100, want: 100},
		"asked for with it":     {memory: 100, reserved: 100, update: 50, ask: 20, want: 20},
		"asked for, and higher": {memory: 100, reserved: 100, update: 50, ask: 60, want: -2},
	} {
		merged := MergeResources(&model.Resources{MemoryLimit: c.memory, MemoryReservation: c.reserved},
			&model.Resources{MemoryLimit: c.update, MemoryReservation: c.ask})
		err := CheckResources(merged, &Host{Cgroups: hierarchies(t, cgroup.V2)})
		if refused := c.want == -2; refused != (err != nil) || !refused && merged.MemoryReservation != c.want {
			t.Errorf("%s: %+v, want %d reserved: %v", what, merged, c.want, err)
		}
	}
}

// TestNoReservationIsNoneOnV2, where -1 would be the most that memory.low can protect. Seen to fail with -1.
func TestNoReservationIsNoneOnV2(t *testing.T) {
	for version, want := range map[cgroup.Version]int64{cgroup.V1: -1, cgroup.V2: nothingReserved} {
		h := *host(t)
		h.Cgroups = hierarchies(t, version)
		out, err := Resources(&model.Resources{MemoryReservation: -1, KernelMemory: -1}, 0, &h)
		if err != nil || *out.Memory.Reservation != want {
			t.Errorf("version %v: %+v, %v", version, out, err)
		}
	}
}

// TestAnUpdateIsUndone: what had a limit before has it again, and what had none has none.
func TestAnUpdateIsUndone(t *testing.T) {
	v1, v2 := *host(t), *host(t)
	v1.Cgroups, v2.Cgroups = hierarchies(t, cgroup.V1), hierarchies(t, cgroup.V2)
	rate := func(minor int64, rate uint64) specs.LinuxThrottleDevice {
		d := specs.LinuxThrottleDevice{Rate: rate}
		d.Major, d.Minor = 8, minor
		return d
	}
	update := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: ptr[int64](5), Period: ptr[uint64](6), Shares: ptr[uint64](7)},
		Memory: &specs.LinuxMemory{Limit: ptr[int64](8), Swap: ptr[int64](9), Reservation: ptr[int64](10)},
		Pids:   &specs.LinuxPids{Limit: ptr[int64](11)},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{
			rate(0, 12), rate(16, 13),
		}},
	}
	before := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: true}},
		CPU:     &specs.LinuxCPU{Shares: ptr[uint64](70)},
		Memory:  &specs.LinuxMemory{Limit: ptr[int64](80)},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{rate(0, 120)}},
	}
	got := UndoResources(before, update, &v1)
	want := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: ptr[int64](-1), Period: ptr[uint64](100000), Shares: ptr[uint64](70)},
		Memory: &specs.LinuxMemory{Limit: ptr[int64](80), Swap: ptr[int64](-1), Reservation: ptr[int64](-1)},
		Pids:   &specs.LinuxPids{Limit: ptr[int64](-1)},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{
			rate(0, 120), rate(16, 0),
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("undone %+v, want %+v", got, want)
	}
	if before.CPU.Quota != nil || len(before.BlockIO.ThrottleReadBpsDevice) != 1 {
		t.Errorf("the limits from before were written to: %+v", before)
	}
	got = UndoResources(before, update, &v2)
	if got.Memory.Reservation == nil || *got.Memory.Reservation != nothingReserved {
		t.Errorf("memory.low becomes %v", got.Memory.Reservation) // the update's would stay
	}
	// The kernel refuses 0 in io.max, and nothing after it would be undone. Seen to fail with 0.
	rates := []specs.LinuxThrottleDevice{rate(0, 120), rate(16, math.MaxUint64)}
	if !reflect.DeepEqual(got.BlockIO.ThrottleReadBpsDevice, rates) {
		t.Errorf("on v2 the rates become %v, want %v", got.BlockIO.ThrottleReadBpsDevice, rates)
	}
	if got := UndoResources(&specs.LinuxResources{}, &specs.LinuxResources{}, &v1); !reflect.DeepEqual(got,
		&specs.LinuxResources{}) {
		t.Errorf("nothing undone is %+v", got)
	}
}

func TestOOMScoresAreWhatMayBeGiven(t *testing.T) {
	in := input(t)
	in.Host.MinOOMScoreAdj = -100
	in.Container.Resources = &model.Resources{OOMScoreAdj: -997}
	out := build(t, in)
	if *out.Spec.Process.OOMScoreAdj != -100 || len(out.Warnings) != 1 {
		t.Errorf("oom_score_adj %d, warnings %q", *out.Spec.Process.OOMScoreAdj, out.Warnings)
	}
	in.Container.Resources = nil
	if out := build(t, in); *out.Spec.Process.OOMScoreAdj != 0 {
		t.Errorf("oom_score_adj %d, want 0", *out.Spec.Process.OOMScoreAdj)
	}
}

func TestNamespacesAreThoseOfThePod(t *testing.T) {
	kinds := func(in Input) string {
		var out []string
		for _, n := range build(t, in).Spec.Linux.Namespaces {
			out = append(out, string(n.Type)+":"+n.Path)
		}
		return strings.Join(out, " ")
	}
	in := input(t)
	in.Host.Cgroups = hierarchies(t, cgroup.V1)
	if got, want := kinds(in), "mount: network:/run/ns/net ipc:/run/ns/ipc uts:/run/ns/uts pid:"; got != want {
		t.Errorf("namespaces %q, want %q", got, want)
	}
	in.Namespaces = Namespaces{PID: "/proc/1/ns/pid"}
	in.Container.Security.Namespaces.PID = model.NamespaceTarget
	if got, want := kinds(in), "mount: pid:/proc/1/ns/pid"; got != want {
		t.Errorf("namespaces %q, want %q", got, want)
	}
	in.Container.Security.Namespaces.PID = model.NamespaceNode
	in.Host.Cgroups = hierarchies(t, cgroup.V2)
	if got, want := kinds(in), "mount: cgroup:"; got != want {
		t.Errorf("namespaces on v2 %q, want %q", got, want)
	}
	in.Namespaces.UTS = Fresh
	if spec := build(t, in).Spec; spec.Hostname != "podhost" {
		t.Errorf("hostname %q in a UTS namespace of its own", spec.Hostname)
	}
}

func TestUserNamespacesAreMapped(t *testing.T) {
	in := input(t)
	in.Host.IDMappedMounts = true
	mapping := []model.IDMapping{{HostID: 65536, Length: 4}}
	in.Container.Security.Namespaces.User = &model.UserNamespace{Mode: model.NamespacePod, UIDs: mapping, GIDs: mapping}
	in.Container.Mounts = []model.Mount{{ContainerPath: "/d", HostPath: "/tmp", UIDMappings: mapping,
		GIDMappings: mapping}}
	in.Namespaces.User = "/run/ns/user"
	spec := build(t, in).Spec
	if len(spec.Linux.UIDMappings) != 1 || spec.Linux.GIDMappings[0] != (specs.LinuxIDMapping{HostID: 65536, Size: 4}) {
		t.Errorf("mappings %+v", spec.Linux.UIDMappings)
	}
	for _, m := range spec.Mounts {
		if m.Destination == "/d" && (!slices.Contains(m.Options, "idmap") || len(m.UIDMappings) != 1) {
			t.Errorf("mount %+v", m)
		}
		if m.Destination == "/dev/pts" && slices.Contains(m.Options, "gid=5") {
			t.Error("/dev/pts belongs to a group that is not mapped")
		}
	}
	if spec.Linux.MaskedPaths != nil {
		t.Error("an unmasked /proc in a user namespace was masked")
	}
	for _, bad := range [][]model.IDMapping{
		nil, {{}}, {{HostID: 1<<32 - 1, Length: 2}}, {{Length: 5}, {ContainerID: 4, HostID: 100, Length: 1}},
		make([]model.IDMapping, 341),
	} {
		in.Container.Security.Namespaces.User.UIDs = bad
		if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("mappings %v: %v", bad, err)
		}
	}
	in.Container.Security.Namespaces.User.UIDs = mapping
	in.Container.Security.Privileged = true
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("privileged in a user namespace: %v", err)
	}
}

func TestSeccompProfilesAreChosen(t *testing.T) {
	in := input(t)
	if build(t, in).Spec.Linux.Seccomp != nil {
		t.Error("no profile asked for, and one is there")
	}
	in.Handler.Seccomp = &model.SecurityProfile{Type: model.ProfileRuntimeDefault}
	first, second := build(t, in).Spec.Linux.Seccomp, build(t, in).Spec.Linux.Seccomp
	if first == nil || first != second {
		t.Error("the default profile is not shared between containers with the same capabilities")
	}
	in.Container.Security.Capabilities.Add = []string{"SYS_ADMIN"}
	if build(t, in).Spec.Linux.Seccomp == first {
		t.Error("the default profile does not depend on capabilities")
	}
	in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileUnconfined}
	if build(t, in).Spec.Linux.Seccomp != nil {
		t.Error("Unconfined is filtered")
	}
	in.Handler.SeccompRoot = t.TempDir()
	write(t, filepath.Join(in.Handler.SeccompRoot, "sub/p.json"), `{"defaultAction":"SCMP_ACT_LOG"}`)
	in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "sub/p.json"}
	if p := build(t, in).Spec.Linux.Seccomp; p == nil || p.DefaultAction != specs.ActLog {
		t.Errorf("Localhost profile %+v", p)
	}
}

func TestSysctlsStayInThePod(t *testing.T) {
	pod, node := model.NamespaceOptions{}, model.NamespaceOptions{Network: model.NamespaceNode, IPC: model.NamespaceNode}
	for _, c := range []struct {
		key string
		n   model.NamespaceOptions
		ok  bool
	}{
		{"net.ipv4.ip_forward", pod, true}, {"net/ipv4/ip_forward", pod, true}, {"kernel.shmmax", pod, true},
		{"fs.mqueue.msg_max", pod, true}, {"kernel.domainname", pod, true}, {"net.ipv4.ip_forward", node, false},
		{"kernel.shmmax", node, false}, {"kernel.domainname", node, false}, {"kernel.panic", pod, false},
		{"vm.swappiness", pod, false},
		{"net/../kernel/panic", pod, false}, {"", pod, false}, {"kernel.shmmaxx", pod, false},
	} {
		if err := CheckSysctls(map[string]string{c.key: "1"}, c.n); (err == nil) != c.ok {
			t.Errorf("sysctl %q with %+v: %v", c.key, c.n, err)
		}
	}
}

func TestStopSignalsAreParsed(t *testing.T) {
	for text, want := range map[string]syscall.Signal{
		"SIGTERM": 15, "quit": 3, "9": 9, "SIGRTMIN+3": 37, "RTMAX-1": 63, "SIGRTMIN": 34,
		"": 0, "0": 0, "65": 0, "SIGNOPE": 0, "SIGRTMIN+31": 0, "SIGRTMAX+1": 0,
	} {
		if got, ok := ParseSignal(text); ok != (want != 0) || ok && got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, ok, want)
		}
	}
	in := input(t)
	in.Image.StopSignal = "SIGNOPE"
	if out := build(t, in); out.StopSignal != unix.SIGTERM || len(out.Warnings) != 1 {
		t.Errorf("signal %v, warnings %q", out.StopSignal, out.Warnings)
	}
}

func TestRlimitsAreWhatMayBeGiven(t *testing.T) {
	in := input(t)
	in.Host.MayRaiseLimits = false
	in.Handler.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 1},
		{Type: "RLIMIT_NOFILE", Hard: 1 << 50, Soft: 1 << 50}}
	out := build(t, in)
	got := out.Spec.Process.Rlimits
	if len(got) != 2 || got[0].Hard != 1 || got[1].Hard >= 1<<50 || got[1].Soft > got[1].Hard || len(out.Warnings) != 1 {
		t.Errorf("limits %+v, warnings %q", got, out.Warnings)
	}
	for _, bad := range []specs.POSIXRlimit{{Type: "RLIMIT_FUN"}, {Type: "RLIMIT_CORE", Soft: 2, Hard: 1}} {
		in.Handler.Rlimits = []specs.POSIXRlimit{bad}
		if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("limit %+v: %v", bad, err)
		}
	}
}

func TestAnnotationsPassByPattern(t *testing.T) {
	in := input(t)
	in.Handler.Annotations = []string{"vendor.com/*"}
	in.Sandbox.Annotations = map[string]string{"vendor.com/a": "pod", "vendor.com/b": "pod", "other": "x"}
	in.Container.Annotations = map[string]string{"vendor.com/a": "container", annotationOwnContainer: "forged"}
	got := build(t, in).Spec.Annotations
	if got["vendor.com/a"] != "container" || got["vendor.com/b"] != "pod" || got["other"] != "" ||
		got[annotationOwnContainer] != "ctr1" {
		t.Errorf("annotations %v", got)
	}
}

// interpreted are annotations by which pods told runtimes what to do as root. Only the last two may pass,
// where a handler names them.
var interpreted = []string{
	"org.systemd.property.ExecStartPre", "org.systemd.property.TimeoutStopUSec", "bundle", "org.criu.config",
	"run.oci.hooks.stdout",
	"run.oci.seccomp.plugins", "krun.cpus", "module.wasm.image/variant", "io.katacontainers.config.hypervisor.path",
	"io.kubernetes.cri-o.userns-mode", "dev.gvisor.flag.debug-log", "cdi.k8s.io/all",
	"run.oci.systemd.subgroup", "org.criu.other",
}

// With either cgroup driver: the annotations of systemd's units are heeded by runtimes where the path
// is slice:prefix:name. Seen to fail without the lists of package annotation.
func TestAnnotationsThatCommandRuntimesPassByNoPattern(t *testing.T) {
	for _, path := range []string{"/pods/ctr1", "pods.slice:berth:ctr1"} {
		in := input(t)
		in.CgroupsPath = path
		in.Handler.Annotations = []string{"*",
			"run.oci.*", "org.systemd.property.*", "bundl[e]", "run.oci.systemd.subgroup", "org.criu.other"}
		in.Sandbox.Annotations = map[string]string{"vendor.com/a": "b"}
		in.Container.Annotations = map[string]string{}
		for i, key := range interpreted {
			in.Sandbox.Annotations[key] = "evil"
			if i%2 == 0 && key != "cdi.k8s.io/all" {
				in.Container.Annotations[key] = "evil"
			}
		}
		out := build(t, in)
		for i, key := range interpreted {
			if _, passed := out.Spec.Annotations[key]; passed != (i >= len(interpreted)-2) {
				t.Errorf("%s: passed on %t", key, passed)
			}
		}
		if out.Spec.Annotations["vendor.com/a"] != "b" {
			t.Errorf("annotations %v", out.Spec.Annotations)
		}
		if all := strings.Join(out.Warnings, "\n"); !strings.Contains(all,
			"annotation org.systemd.property.ExecStartPre is not passed on: ") {
			t.Errorf("warnings %s", all)
		}
	}
	in := input(t)
	in.Edits = []model.Edits{{Source: "plugin", Annotations: map[string]string{"org.systemd.property.ExecStartPre": "x"}}}
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrFailedPrecondition) ||
		!strings.Contains(err.Error(), "org.systemd.property.ExecStartPre") {
		t.Errorf("of a device plugin: %v", err)
	}
}

func TestExecIsAsTheContainerButForItsCommand(t *testing.T) {
	spec := build(t, input(t)).Spec
	p := Exec(spec, []string{"sh"}, true)
	if !slices.Equal(p.Args, []string{"sh"}) || !p.Terminal || !slices.Contains(p.Env, "TERM=xterm") ||
		p.Cwd != spec.Process.Cwd ||
		p.Capabilities != spec.Process.Capabilities {
		t.Errorf("exec %+v", p)
	}
	if spec.Process.Terminal || slices.Contains(spec.Process.Env, "TERM=xterm") {
		t.Error("the container's own process was changed")
	}
}

func TestAHungFileSystemEndsWithTheDeadline(t *testing.T) {
	in := input(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	b := &builder{ctx: ctx, in: in}
	hung := make(chan struct{})
	defer close(hung)
	err := b.waiting("mounts", func() error { <-hung; return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// TestACDIDeviceOfAPluginThatHangsEndsWithTheDeadline: it held up the creation, and with it all that NRI plugins are
// asked, without an end.
func TestACDIDeviceOfAPluginThatHangsEndsWithTheDeadline(t *testing.T) {
	f := mutetest.Mount(t, t.TempDir())
	dir := t.TempDir()
	text := fmt.Sprintf("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: d\n  containerEdits:\n    deviceNodes:\n"+
		"    - {path: /dev/d, hostPath: %q}\n", filepath.Join(f.Dir, "d"))
	if err := os.WriteFile(filepath.Join(dir, "v.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Mute()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := InjectCDI(ctx, &specs.Spec{Process: &specs.Process{}}, []string{dir}, []string{"v.com/c=d"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func BenchmarkBuild(b *testing.B) {
	dir := b.TempDir()
	in := Input{SandboxID: "p", ContainerID: "c", Sandbox: &model.SandboxConfig{},
		Container: &model.ContainerConfig{Command: []string{"x"}, Security: model.ContainerSecurity{
			Namespaces: model.NamespaceOptions{PID: model.NamespaceContainer},
			Seccomp:    &model.SecurityProfile{Type: model.ProfileRuntimeDefault},
		}}, Rootfs: dir, CgroupsPath: "/x"}
	for b.Loop() {
		if _, err := Build(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBuildWithManyVariables builds for images with more and more variables in their environment:
// the time for each has to stay the same.
func BenchmarkBuildWithManyVariables(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000, 60_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := Input{SandboxID: "p", ContainerID: "c", Sandbox: &model.SandboxConfig{},
				Container: &model.ContainerConfig{Command: []string{"x"}, Security: model.ContainerSecurity{
					Namespaces: model.NamespaceOptions{PID: model.NamespaceContainer}}},
				Rootfs: b.TempDir(), CgroupsPath: "/x"}
			for i := range n {
				in.Image.Env = append(in.Image.Env, fmt.Sprintf("VARIABLE_%d=value", i))
			}
			for b.Loop() {
				if _, err := Build(b.Context(), in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/variable")
		})
	}
}

// TestAScopeIsStoppedBeforeTheKeeper when the node shuts down. A client's
// own annotations of this kind are never passed on. Seen to fail without Scope.annotations.
func TestAScopeIsStoppedBeforeTheKeeper(t *testing.T) {
	for grace, want := range map[string]uint64{
		"30": 30_000_000, "0": 1_000_000, "9223372036854775807": maxStop * 1_000_000,
		"-1": 0, "": 0, "odd": 0,
	} {
		in := input(t)
		in.CgroupsPath, in.Scope = "a.slice:b:c", &Scope{After: []string{"berth-keeper.service", `own\x2dkeeper.service`}}
		in.Container.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": grace,
			"org.systemd.property.ExecStop": "'evil'"}
		out, err := Build(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		cg, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{CgroupName: "c", UseSystemdCgroup: true,
			Spec: out.Spec}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for _, p := range cg.SystemdProps {
			got[p.Name] = p.Value.Value()
		}
		properties := map[string]any{"After": in.Scope.After}
		if want > 0 {
			properties["TimeoutStopUSec"] = want
		}
		if !reflect.DeepEqual(got, properties) {
			t.Errorf("with a grace period of %q: %v", grace, got)
		}
	}
	in := input(t)
	if out, err := Build(t.Context(), in); err != nil || out.Spec.Annotations["org.systemd.property.After"] != "" {
		t.Errorf("without systemd it has %v, %v", out.Spec.Annotations, err)
	}
}
