package life

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func userNamespace(host, length uint32) *cri.UserNamespace {
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: host, Length: length}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func TestRootInAUserNamespaceIsNobodyOnTheNode(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime and a kernel with ID-mapped mounts")
	for name, pid := range map[string]cri.NamespaceMode{
		"a PID namespace for each container": cri.NamespaceMode_CONTAINER,
		"a PID namespace for the pod":        cri.NamespaceMode_POD,
	} {
		t.Run(name, func(t *testing.T) {
			p := nodetest.RunPod(t, n,
				podNamespaces(&cri.NamespaceOption{Pid: pid, UsernsOptions: userNamespace(200000, 65536)}))
			plain, mapped := t.TempDir(), t.TempDir()
			for _, dir := range []string{plain, mapped} {
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			ids := []*cri.IDMapping{{ContainerId: 0, HostId: 200000, Length: 65536}}
			c := p.Run(nodetest.Mounts(
				&cri.Mount{HostPath: plain, ContainerPath: "/plain"},
				&cri.Mount{HostPath: mapped, ContainerPath: "/mapped", UidMappings: ids, GidMappings: ids},
			))
			if got := c.Sh("id -u; cat /proc/self/uid_map | tr -s ' '"); got != "0\n 0 200000 65536" {
				t.Errorf("inside: %q", got)
			}
			if got := c.Sh("stat -c %u:%g /bin/busybox /etc/passwd / /dev/mqueue"); got != "0:0\n0:0\n0:0\n0:0" {
				t.Errorf("owners in the root file system: %q", got)
			}
			c.Sh("echo x >/new && echo x >/dev/shm/new && echo x >/plain/new && echo x >/mapped/new && chown 5:6 /mapped/new")
			for path, want := range map[string][2]uint32{
				filepath.Join(plain, "new"):  {200000, 200000}, // as the kernel sees the container's root
				filepath.Join(mapped, "new"): {5, 6},           // as the volume has it
			} {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if st := info.Sys().(*syscall.Stat_t); st.Uid != want[0] || st.Gid != want[1] {
					t.Errorf("%s belongs to %d:%d, want %v", path, st.Uid, st.Gid, want)
				}
			}
			if got := c.Sh("hostname; cat /etc/resolv.conf >/dev/null && echo reads"); !strings.HasSuffix(got, "reads") {
				t.Errorf("the pod's files: %q", got)
			}
			other := p.Run()
			if got := other.Sh("cat /proc/self/uid_map | tr -s ' '"); got != " 0 200000 65536" {
				t.Errorf("a second container: %q", got)
			}
			pidOf, err := n.ContainerPID(c.ID)
			if err != nil {
				t.Fatal(err)
			}
			otherPID, err := n.ContainerPID(other.ID)
			if err != nil {
				t.Fatal(err)
			}
			if namespace(t, pidOf, "user") != namespace(t, otherPID, "user") ||
				namespace(t, pidOf, "user") == namespace(t, "self", "user") {
				t.Error("the containers of the pod do not share one user namespace of its own")
			}
		})
	}
}

// TestAPodWithAUserNamespaceHasSysctls of its network, its IPC and its host name: the kernel lets the node's root write
// some of them, and only the root of the pod the others. Those of IPC were seen to fail with "permission denied".
func TestAPodWithAUserNamespaceHasSysctls(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime with user namespaces")
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}),
		func(c *cri.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20",
				"net.ipv4.ip_unprivileged_port_start": "7"}
		})
	got := p.Run().Sh("cd /proc/sys; cat kernel/shm_rmid_forced fs/mqueue/msg_max net/ipv4/ip_unprivileged_port_start")
	if got != "1\n20\n7" {
		t.Errorf("got %q", got)
	}
}

// TestAUserNamespaceMayBeSmall: with fewer IDs than the user of the pod's init has, whose start was seen to fail with
// "set the group: invalid argument".
func TestAUserNamespaceMayBeSmall(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime with user namespaces")
	p := nodetest.RunPod(t, n,
		podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: userNamespace(200000, 1000)}))
	if got := p.Run().Sh("cat /proc/self/uid_map | tr -s ' '; stat -c %u /proc/1"); got != " 0 200000 1000\n999" {
		t.Errorf("got %q", got)
	}
}

// TestAUserNamespaceHasNoProcOfTheNodesProcesses: the kernel lets nobody mount one there. It was seen to be said by
// StartContainer only, as "operation not permitted".
func TestAUserNamespaceHasNoProcOfTheNodesProcesses(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime with user namespaces")
	p := nodetest.RunPod(t, n, podNamespaces(
		&cri.NamespaceOption{Pid: cri.NamespaceMode_NODE, UsernsOptions: userNamespace(200000, 65536)}))
	nodes := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_NODE}
	})
	_, err := p.TryCreate(nodes)
	nodetest.WantCode(t, err, codes.InvalidArgument)
	if err != nil && !strings.Contains(err.Error(), "needs a mount of the host's /proc") {
		t.Errorf("%v does not say what it needs", err)
	}
	c := p.Run(nodes, nodetest.Mounts(&cri.Mount{HostPath: "/proc", ContainerPath: "/proc"}))
	if got, want := c.Sh("readlink /proc/self/ns/pid"), namespace(t, "self", "pid"); got != want {
		t.Errorf("its PID namespace is %s, the node's is %s", got, want)
	}
}

// TestADeviceOfAPodWithAUserNamespaceHasAnotherPath in the container than on the node. Nobody can make a device there,
// so that the container has the node's own. Its path in the container was seen to be taken for the one on the node.
func TestADeviceOfAPodWithAUserNamespaceHasAnotherPath(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime with user namespaces")
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{
			{HostPath: "/dev/full", ContainerPath: "/dev/mine", Permissions: "rwm"},
			{HostPath: "/dev/full", ContainerPath: "/other/full", Permissions: "rwm"},
			{HostPath: "/dev/full", ContainerPath: "/dev/full", Permissions: "rwm"},
		}
	})
	for _, at := range []string{"/dev/mine", "/other/full", "/dev/full"} {
		if got := c.Sh("ls -l " + at + " | cut -c1; head -c 3 " + at + " | wc -c"); got != "c\n3" {
			t.Errorf("%s: %q", at, got)
		}
	}
}

// Volumes on NFS are those that users meet; procfs cannot be mapped either.
func TestAVolumeWhoseOwnersCannotBeMappedIsToldSo(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime and a kernel with ID-mapped mounts")
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
		Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536),
	}))
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 200000, Length: 65536}}
	c := p.Create(nodetest.Mounts(
		&cri.Mount{HostPath: "/proc/sys", ContainerPath: "/m", UidMappings: ids, GidMappings: ids}))
	err := c.TryStart()
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	for _, want := range []string{"/proc/sys", "support"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestBadUserMappingsAreRefused(t *testing.T) {
	n := nodetest.Shared(t)
	for name, user := range map[string]*cri.UserNamespace{
		"no mapping":     {Mode: cri.NamespaceMode_POD},
		"length 0":       userNamespace(200000, 0),
		"beyond 32 bits": userNamespace(1<<32-2, 65536),
		"root not mapped": {Mode: cri.NamespaceMode_POD, Uids: []*cri.IDMapping{{ContainerId: 1, HostId: 1, Length: 1}},
			Gids: []*cri.IDMapping{{ContainerId: 1, HostId: 1, Length: 1}}},
		"container mode": {Mode: cri.NamespaceMode_CONTAINER},
		"target mode":    {Mode: cri.NamespaceMode_TARGET},
		"the node's with mappings": {
			Mode: cri.NamespaceMode_NODE, Uids: userNamespace(200000, 65536).Uids, Gids: userNamespace(200000, 65536).Gids,
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := nodetest.PodConfig(n, podNamespaces(&cri.NamespaceOption{UsernsOptions: user}))
			_, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: config})
			nodetest.WantCode(t, err, codes.InvalidArgument)
			if err != nil && !strings.Contains(err.Error(), "userns_options") {
				t.Errorf("%v does not name the field", err)
			}
		})
	}
}

// TestAContainersUserNamespaceIsItsPods: clients may leave it out, and cannot choose another.
func TestAContainersUserNamespaceIsItsPods(t *testing.T) {
	nodetest.BerthOnly(t, "containerd has another code, and wants the pod's to be said again")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
		Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536),
	}))
	with := func(user *cri.UserNamespace) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{
				Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: user,
			}
		}
	}
	if got := p.Run(with(nil)).Sh("tr -s ' ' </proc/self/uid_map"); got != " 0 200000 65536" {
		t.Errorf("the container that leaves it out is in %q", got)
	}
	for name, user := range map[string]*cri.UserNamespace{
		"another":    userNamespace(300000, 65536),
		"the node's": {Mode: cri.NamespaceMode_NODE},
	} {
		_, err := p.TryCreate(with(user))
		nodetest.WantCode(t, err, codes.InvalidArgument)
		if err == nil || !strings.Contains(err.Error(), "config.linux.security_context.namespace_options.userns_options: ") {
			t.Errorf("%s: %v does not name the field", name, err)
		}
	}
}

func TestTheNodesUserNamespaceIsThatOfAPodThatAsksForIt(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
		Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_NODE},
	})).Run()
	if got, want := namespace(t, hostPID(t, c), "user"), namespace(t, "self", "user"); got != want {
		t.Errorf("its user namespace is %s, the node's is %s", got, want)
	}
}

func TestAUserNamespaceGoesWithTheNodesNetwork(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs containerd 2.3")
	status, err := n.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{})
	if err != nil || !status.GetFeatures().GetUserNamespacesHostNetwork() {
		t.Errorf("the feature is not announced: %v, %v", status.GetFeatures(), err)
	}
	for name, pid := range map[string]cri.NamespaceMode{
		"a PID namespace for each container": cri.NamespaceMode_CONTAINER,
		"a PID namespace for the pod":        cri.NamespaceMode_POD,
	} {
		t.Run(name, func(t *testing.T) {
			p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
				Network: cri.NamespaceMode_NODE, Pid: pid, UsernsOptions: userNamespace(200000, 65536),
			}))
			c := p.Run()
			if got := c.Sh("id -u; cat /proc/self/uid_map | tr -s ' '"); got != "0\n 0 200000 65536" {
				t.Errorf("inside: %q", got)
			}
			if got, want := namespace(t, hostPID(t, c), "net"), namespace(t, "self", "net"); got != want {
				t.Errorf("its network namespace is %s, the node's is %s", got, want)
			}
			c.Sh("ls /sys/class/net/lo >/dev/null; ! ip link set lo mtu 65000 2>/dev/null; ! touch /sys/x 2>/dev/null")
		})
	}
}

func TestAnImageIsAVolume(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	config := p.ContainerConfig()
	image := config.Image
	c := p.Run(nodetest.Mounts(
		&cri.Mount{ContainerPath: "/image", Image: image, Readonly: true},
		&cri.Mount{ContainerPath: "/etc-of-image", Image: image, ImageSubPath: "etc", Readonly: true},
	))
	if got := c.Sh("test -x /image/bin/busybox && test -f /etc-of-image/passwd && echo there"); got != "there" {
		t.Errorf("the image: %q", got)
	}
	if res, err := c.Exec(60, "sh", "-c", "echo x >/image/new"); err != nil || res.ExitCode == 0 {
		t.Errorf("the image can be written to: %v, %v", res, err)
	}
	_, err := p.TryCreate(nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: image, ImageSubPath: "../etc"}))
	nodetest.WantCode(t, err, codes.InvalidArgument)
	wantImageVolumeMountFailed(t, err)
	absent := &cri.Mount{ContainerPath: "/image", Image: &cri.ImageSpec{Image: "registry.test/no/such:1"}, Readonly: true}
	_, err = p.TryCreate(nodetest.Mounts(absent))
	wantImageVolumeMountFailed(t, err)
	if !nodetest.Containerd() { // which says Unknown
		nodetest.WantCode(t, err, codes.NotFound)
	}
	_, err = p.TryCreate(nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: image,
		ImageSubPath: "nothing", Readonly: true}))
	wantImageVolumeMountFailed(t, err)
	_, err = p.TryCreate(nodetest.Mounts(&cri.Mount{ContainerPath: "/x", HostPath: "/dev/null/no-directory"}))
	if got := status.Convert(err).Message(); err == nil ||
		strings.Contains(got, crierrors.ErrImageVolumeMountFailed.Error()) {
		t.Errorf("a mount of no image: %q", got)
	}
}

// wantImageVolumeMountFailed checks that an error begins with the word by which a kubelet counts failures of image
// volumes.
func wantImageVolumeMountFailed(t *testing.T, err error) {
	t.Helper()
	if got := status.Convert(err).Message(); !strings.HasPrefix(got, crierrors.ErrImageVolumeMountFailed.Error()+": ") {
		t.Errorf("%q does not begin with %s", got, crierrors.ErrImageVolumeMountFailed)
	}
}

// TestAnImageIsAVolumeInAUserNamespace: a kubelet copies the mappings of a pod to each of its mounts, those of images
// too. It was seen to fail with "invalid argument", when the mappings were applied to the image's mount, which has
// them already.
func TestAnImageIsAVolumeInAUserNamespace(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "needs a runtime and a kernel with ID-mapped mounts")
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
	image, ids := p.ContainerConfig().Image, userNamespace(200000, 65536).Uids
	c := p.Run(nodetest.Mounts(
		&cri.Mount{ContainerPath: "/image", Image: image, Readonly: true, UidMappings: ids, GidMappings: ids},
		&cri.Mount{ContainerPath: "/etc-of-image", Image: image, ImageSubPath: "etc", Readonly: true,
			UidMappings: ids, GidMappings: ids},
	))
	if got := c.Sh("stat -c %u:%g /image/bin/busybox /etc-of-image/passwd"); got != "0:0\n0:0" {
		t.Errorf("owners in the image: %q", got)
	}
	other := []*cri.IDMapping{{ContainerId: 0, HostId: 300000, Length: 65536}}
	_, err := p.TryCreate(nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: image, UidMappings: other,
		GidMappings: other}))
	nodetest.WantCode(t, err, codes.InvalidArgument)
}

// TestWhoCannotReachARootFileSystemIsToldWhy: libcontainer and OCI runtimes walk there as the root of the pod's user
// namespace, and the kernel names the last directory of the path, whichever bars.
func TestWhoCannotReachARootFileSystemIsToldWhy(t *testing.T) {
	nodetest.BerthOnly(t, "the node's directories are Berth's own")
	closed, err := os.MkdirTemp("", "closed") // of mode 0700; t.TempDir has a path that is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(closed); err != nil {
			t.Error(err)
		}
	})
	n := nodetest.Start(t, node.Options{Dir: closed, Setup: "libcontainer"})
	for name, pid := range map[string]cri.NamespaceMode{"the pod's init": cri.NamespaceMode_POD,
		"a container": cri.NamespaceMode_CONTAINER} {
		t.Run(name, func(t *testing.T) {
			namespaces := podNamespaces(&cri.NamespaceOption{Pid: pid, UsernsOptions: userNamespace(200000, 65536)})
			var err error
			if pid == cri.NamespaceMode_POD {
				config := nodetest.PodConfig(n, namespaces)
				_, err = n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: config})
			} else {
				c := nodetest.RunPod(t, n, namespaces).Create()
				_, err = n.Runtime.StartContainer(nodetest.Context(t), &cri.StartContainerRequest{ContainerId: c.ID})
			}
			if err == nil || !strings.Contains(err.Error(), "cannot pass the directory "+closed+" of mode 0700") {
				t.Errorf("the error does not name %s: %v", closed, err)
			}
		})
	}
}
