package life

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	early "berth/api/runtime/v1alpha1"
	"berth/test/node/nodetest"
)

func TestMountsBringHostPathsIn(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("real/file", "in the directory")
	write("single", "one file")
	if err := os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c := p.Run(nodetest.Mounts(
		&cri.Mount{HostPath: filepath.Join(dir, "real"), ContainerPath: "/rw"},
		&cri.Mount{HostPath: filepath.Join(dir, "real"), ContainerPath: "/ro", Readonly: true},
		&cri.Mount{HostPath: filepath.Join(dir, "single"), ContainerPath: "/deep/in/file"},
		&cri.Mount{HostPath: filepath.Join(dir, "link"), ContainerPath: "/linked"},
		&cri.Mount{HostPath: filepath.Join(dir, "real"), ContainerPath: "/rw/nested"},
	))
	if got := c.Sh("cat /rw/file /ro/file /deep/in/file /linked/file /rw/nested/file"); got !=
		"in the directoryin the directoryone filein the directoryin the directory" {
		t.Errorf("got %q", got)
	}
	c.Sh("echo new >/rw/written")
	if data, err := os.ReadFile(filepath.Join(dir, "real/written")); err != nil || string(data) != "new\n" {
		t.Errorf("what the container wrote is %q, %v", data, err)
	}
	if r, err := c.Exec(60, "touch", "/ro/x"); err != nil || r.ExitCode == 0 {
		t.Errorf("a read-only mount is written to: %v, %v", r, err)
	}
}

// As with containerd and CRI-O; pods whose hostPath has no type rely on it.
func TestAMissingHostPathIsMade(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	missing := filepath.Join(t.TempDir(), "missing/below")
	c := p.Run(nodetest.Mounts(&cri.Mount{HostPath: missing, ContainerPath: "/m"}))
	c.Sh("echo written >/m/file")
	if data, err := os.ReadFile(filepath.Join(missing, "file")); err != nil || string(data) != "written\n" {
		t.Errorf("what the container wrote is %q, %v", data, err)
	}
	if info, err := os.Stat(missing); err != nil || info.Mode() != os.ModeDir|0o755 ||
		info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the directory is %v, %v", info, err)
	}
	dangling := filepath.Join(t.TempDir(), "dangling")
	if err := os.Symlink(filepath.Join(t.TempDir(), "nothing"), dangling); err != nil {
		t.Fatal(err)
	}
	c, err := p.TryCreate(nodetest.Mounts(&cri.Mount{HostPath: dangling, ContainerPath: "/m"}))
	if err == nil {
		err = c.TryStart()
	}
	if err == nil || !strings.Contains(err.Error(), dangling) {
		t.Errorf("a link that leads nowhere: %v", err)
	}
}

func TestAMissingHostPathIsAnErrorOfTheOlderAPIs(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it makes the directory")
	p := nodetest.RunPod(t, n)
	missing := filepath.Join(t.TempDir(), "missing")
	config := p.ContainerConfig(nodetest.Mounts(&cri.Mount{HostPath: missing, ContainerPath: "/m"}))
	_, err := nodetest.DialV1alpha2(n).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	if err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("the error does not name the path: %v", err)
	}
	d := open2016(t, n)
	pod, _ := d.pod()
	_, err = d.CreateContainer(nodetest.Context(t), &early.CreateContainerRequest{
		PodSandboxId: &pod, Config: &early.ContainerConfig{
			Name: proto.String("mounts"), Image: &early.ImageSpec{Image: proto.String(config.Image.Image)},
			Mounts: []*early.Mount{{HostPath: &missing, ContainerPath: proto.String("/m")}},
		},
	})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	if exists(missing) {
		t.Error("the path was made")
	}
}

// The options of CRI v1 since Kubernetes 1.37. Nothing of the volume is executed, gives rights or is a device.
func TestMountOptionsAreOnTheMount(t *testing.T) {
	nodetest.BerthOnly(t, "containerd 2.3 does not know the field")
	n := nodetest.Shared(t)
	st, err := n.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{})
	if err != nil || !st.GetFeatures().GetMountOptions() {
		t.Errorf("the node says %v, %v", st.GetFeatures(), err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\necho runs\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	options := []string{"nosuid", "noexec", "nodev"}
	c := nodetest.RunPod(t, n).Run(nodetest.Mounts(
		&cri.Mount{HostPath: dir, ContainerPath: "/plain"},
		&cri.Mount{HostPath: dir, ContainerPath: "/one", MountOptions: options[1:2]},
		&cri.Mount{HostPath: dir, ContainerPath: "/all", MountOptions: options, Readonly: true},
	))
	for at, want := range map[string]string{"/plain": "", "/one": "noexec", "/all": "noexec nodev nosuid ro"} {
		fields := strings.Split(c.Sh("awk '$2 == \""+at+"\" { print $4 }' /proc/mounts"), ",")
		for _, option := range append(options, "ro") {
			if has, should := slices.Contains(fields, option), slices.Contains(strings.Fields(want), option); should && !has ||
				has && !should && option == "noexec" {
				t.Errorf("%s has the options %v, want %s", at, fields, want)
			}
		}
	}
	if got := c.Sh("/plain/program"); got != "runs" {
		t.Errorf("without options: %q", got)
	}
	for _, at := range []string{"/one", "/all"} {
		if r, err := c.Exec(60, at+"/program"); err == nil && r.ExitCode == 0 {
			t.Errorf("a program of %s runs: %s", at, r.Stdout)
		}
	}
	for _, m := range c.Status().Mounts {
		if m.ContainerPath == "/all" && len(m.MountOptions) != 3 {
			t.Errorf("the status says %v", m)
		}
	}
	for _, bad := range []string{"exec", "rw", "shared", "", "noexec,nodev"} {
		_, err := nodetest.RunPod(t, n).TryCreate(nodetest.Mounts(
			&cri.Mount{HostPath: dir, ContainerPath: "/x", MountOptions: []string{bad}}))
		nodetest.WantCode(t, err, codes.InvalidArgument)
	}
}

// TestAWritableMountKeepsTheOptionsOfTheHosts, and so does one that is read-only or has options of its own: those of a
// PersistentVolume and those of an administrator are on the host's mount only. Those with an option were seen to lose
// all others, so that "noexec" made a read-only mount of the host writable.
func TestAWritableMountKeepsTheOptionsOfTheHosts(t *testing.T) {
	n := nodetest.Shared(t)
	volume, readonly := t.TempDir(), t.TempDir()
	mount := func(source, at, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, at, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	mount("tmpfs", volume, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	mount(volume, readonly, "", unix.MS_BIND)
	t.Cleanup(func() { _ = unix.Unmount(readonly, unix.MNT_DETACH) })
	mount("", readonly, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	if err := os.WriteFile(filepath.Join(volume, "program"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]*cri.NamespaceOption{
		"the node's users": {Pid: cri.NamespaceMode_CONTAINER},
		"its own users":    {Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536)},
	} {
		t.Run(name, func(t *testing.T) {
			if nodetest.Containerd() && options.UsernsOptions != nil {
				t.Skip("containerd 1.6 has no user namespaces")
			}
			p := nodetest.RunPod(t, n, podNamespaces(options))
			c := p.Run(nodetest.Mounts(
				&cri.Mount{HostPath: volume, ContainerPath: "/volume"},
				&cri.Mount{HostPath: readonly, ContainerPath: "/readonly"},
				&cri.Mount{HostPath: volume, ContainerPath: "/volume-option", MountOptions: []string{"noexec"}},
				&cri.Mount{HostPath: readonly, ContainerPath: "/readonly-option", MountOptions: []string{"noexec"}},
				&cri.Mount{HostPath: volume, ContainerPath: "/volume-ro", Readonly: true}))
			for at, want := range map[string]string{
				"/volume": "rw,nosuid,nodev,noexec", "/readonly": "ro,nosuid,nodev,noexec",
				"/volume-option": "rw,nosuid,nodev,noexec", "/readonly-option": "ro,nosuid,nodev,noexec",
				"/volume-ro": "ro,nosuid,nodev,noexec",
			} {
				if nodetest.Containerd() && strings.Contains(at, "-") {
					continue // it knows no options, and a read-only mount has none of the host's others
				}
				if got := c.Sh("grep ' " + at + " ' /proc/self/mountinfo | cut -d' ' -f6"); !strings.HasPrefix(got, want) {
					t.Errorf("%s has %q, want %s", at, got, want)
				}
			}
			if r, err := c.Exec(60, "/volume/program"); err == nil && r.ExitCode == 0 {
				t.Error("a program of a volume with noexec ran")
			}
		})
	}
}

func TestAMountStaysInsideTheContainer(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	outside := filepath.Join("/", "berth-test-outside-"+filepath.Base(t.TempDir()))
	c, err := p.TryCreate(nodetest.Mounts(&cri.Mount{HostPath: t.TempDir(), ContainerPath: "/../../../.." + outside}))
	if err == nil {
		_ = c.TryStart()
	}
	if exists(outside) {
		t.Errorf("%s was made on the host", outside)
	}
}

func TestMountsSpreadAsTheirPropagationSays(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	dir := t.TempDir()
	// A shared mount of our own, so that nothing depends on how the machine mounts its root.
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	privileged := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true })
	at := func(propagation cri.MountPropagation) *nodetest.Container {
		return p.Run(privileged, nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/m", Propagation: propagation}))
	}
	private, slave, shared := at(cri.MountPropagation_PROPAGATION_PRIVATE),
		at(cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER), at(cri.MountPropagation_PROPAGATION_BIDIRECTIONAL)

	late := filepath.Join(dir, "late")
	if err := os.Mkdir(late, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", late, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(late, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sees := func(c *nodetest.Container) string { return c.Sh("ls /m/late") }
	if got := sees(private); got != "" {
		t.Errorf("private: a later mount of the host is seen: %q", got)
	}
	if got := sees(slave); got != "file" {
		t.Errorf("host to container: a later mount of the host is not seen: %q", got)
	}
	if got := sees(shared); got != "file" {
		t.Errorf("bidirectional: a later mount of the host is not seen: %q", got)
	}
	slave.Sh("mkdir /m/slave && mount -t tmpfs none /m/slave && touch /m/slave/file")
	if exists(filepath.Join(dir, "slave/file")) {
		t.Error("host to container: a mount of the container reaches the host")
	}
	shared.Sh("mkdir /m/shared && mount -t tmpfs none /m/shared && touch /m/shared/file")
	if !exists(filepath.Join(dir, "shared/file")) {
		t.Error("bidirectional: a mount of the container does not reach the host")
	}
}

// TestVolumesOfADriverAreTheNodesAndOfOtherPods: a container of a storage driver mounts them, in a directory of the
// kubelet's. They stay when it ends, and the next one unmounts them, everywhere.
func TestVolumesOfADriverAreTheNodesAndOfOtherPods(t *testing.T) {
	n := nodetest.Shared(t)
	dir := t.TempDir()
	if err := unix.Mount("kubelet", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	driver := func() *nodetest.Container {
		return p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }),
			nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: dir,
				Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL}))
	}
	first := driver()
	first.Sh("cd " + dir + " && mkdir staged pod && mount -t tmpfs disk staged && echo text >staged/file && " +
		"mount -o bind staged pod")
	if err := os.WriteFile(at("subpath"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// As a kubelet mounts a subPath.
	if err := unix.Mount(at("pod/file"), at("subpath"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	user := nodetest.RunPod(t, n)
	c := user.Run(nodetest.Mounts(&cri.Mount{HostPath: at("pod"), ContainerPath: "/volume"},
		&cri.Mount{HostPath: at("subpath"), ContainerPath: "/file"}))
	if got := c.Sh("cat /volume/file /file"); got != "text\ntext" {
		t.Errorf("another pod has %q", got)
	}
	first.Stop(0)
	first.Remove()
	if !exists(at("pod/file")) {
		t.Error("the node has lost the volume with the driver's container")
	}
	second := driver()
	if err := unix.Unmount(at("pod"), unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	if got := second.Sh("ls " + at("pod")); got != "" {
		t.Errorf("unmounted by the node, the driver has %q", got)
	}
	if got := c.Sh("cat /volume/file"); got != "text" {
		t.Errorf("unmounted by the node, the pod that uses it has %q", got)
	}
	user.Remove()
	second.Sh("umount " + at("subpath") + " && umount " + at("staged"))
	processes := []int{os.Getpid(), n.PID()}
	if keeper, there := n.KeeperPID(); there {
		processes = append(processes, keeper)
	}
	for _, pid := range processes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil || strings.Contains(string(data), dir+"/") {
			t.Errorf("process %d still has a volume: %v\n%s", pid, err, data)
		}
	}
}

func TestPropagationToAndFromAMountThatIsNotSharedIsRefused(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	c, err := p.TryCreate(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/m",
		Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL}))
	if err == nil {
		err = c.TryStart()
	}
	if err == nil {
		t.Error("it is accepted")
	}
}

func TestDevicesAreBroughtIn(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: "/dev/full", ContainerPath: "/dev/mine", Permissions: "rwm"}}
	})
	if got := c.Sh("ls -l /dev/mine | cut -c1; head -c 3 /dev/mine | wc -c"); got != "c\n3" {
		t.Errorf("got %q", got)
	}
	// A device that was not asked for is out of reach, whatever node is made for it.
	if r, err := c.Exec(60, "sh", "-c", "mknod /tmp/kmsg c 1 11 && cat /tmp/kmsg"); err != nil || r.ExitCode == 0 {
		t.Errorf("a device that was not given is read: %v, %v", r, err)
	}
	const control = "/dev/loop-control"
	if !exists(control) {
		t.Skipf("%s is not on this machine", control)
	}
	readable := p.Run(func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: control, ContainerPath: "/dev/mine", Permissions: "r"}}
	})
	readable.Sh("exec 3</dev/mine")
	if r, err := readable.Exec(60, "sh", "-c", "exec 3>/dev/mine"); err != nil || r.ExitCode == 0 ||
		!strings.Contains(string(r.Stderr), "not permitted") {
		t.Errorf("a device given to read is written: %v, %v", r, err)
	}
	missing, err := p.TryCreate(func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: "/dev/no-such", ContainerPath: "/dev/x", Permissions: "r"}}
	})
	if err == nil {
		err = missing.TryStart()
	}
	if err == nil {
		t.Error("a device that is not there is accepted")
	}
}

func TestAWritableLayerEndsWithItsContainer(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	c.Sh("head -c 10000000 /dev/zero >/big")
	var before syscall.Statfs_t
	if err := syscall.Statfs(n.Root, &before); err != nil {
		t.Fatal(err)
	}
	c.Remove()
	left, err := filepath.Glob(filepath.Join(n.Root, "containers", c.ID))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
