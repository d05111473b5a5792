package life

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// netBind is the file capability cap_net_bind_service=ep.
const netBind = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// volumeImage is an image that declares volumes: one with content, one without, one behind a link,
// and one that every container has something at.
func volumeImage(t *testing.T, n *node.Node) nodetest.ContainerEdit {
	t.Helper()
	r, host := broken(t, n)
	busybox, err := registrytest.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	push(t, r, "v:1", image(t,
		registrytest.Layer(busybox...),
		registrytest.Layer(
			registrytest.Dir("data", 0o3770).Owned(1001, 1002),
			registrytest.File("data/file", 0o640, "from the image").Owned(1003, 1004),
			registrytest.Hardlink("data/hard", "data/file"),
			registrytest.File("data/sub/capable", 0o755, "").Xattr("security.capability", netBind),
			registrytest.Symlink("data/soft", "file"),
			registrytest.Dir("data/sub", 0o700),
			registrytest.Dir("real", 0o755), registrytest.File("real/x/file", 0o644, "behind a link"),
			registrytest.Symlink("link", "real"),
		),
		registrytest.Env("PATH=/bin"), registrytest.Cmd("sleep", "3600"),
		registrytest.Volumes("/data", "/none/here/", "/link/x", "/sys/fs/cgroup", "/dev/shm")))
	return func(c *cri.ContainerConfig) { c.Image.Image = host + "/v:1" }
}

func TestVolumesOfAnImageAreTheContainersOwn(t *testing.T) {
	nodetest.BerthOnly(t, "it copies other things")
	n := nodetest.Shared(t)
	withVolumes := volumeImage(t, n)
	for _, mapped := range []bool{false, true} {
		for _, handler := range []string{"", "runc", "crun"} {
			if handler != "" && mapped { // Debian's cannot map the owners of layers
				continue
			}
			t.Run(handler+map[bool]string{true: " in a user namespace"}[mapped], func(t *testing.T) {
				nodetest.Handler(t, n, handler)
				var edits []nodetest.PodEdit
				if mapped {
					edits = append(edits, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER,
						UsernsOptions: userNamespace(300000, 65536)}))
				}
				p := nodetest.RunPodHandler(t, n, handler, edits...)
				c := p.Run(withVolumes, nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }))
				if got := c.Sh("stat -c '%a %u:%g' /data /data/file /data/sub /none/here; " +
					"cat /data/file /data/soft /real/x/file; stat -c %h /data/hard"); got !=
					"3770 1001:1002\n640 1003:1004\n700 0:0\n755 0:0\nfrom the imagefrom the imagebehind a link2" {
					t.Errorf("the volumes begin with %q", got)
				}
				// The root file system is read-only, its volumes are not.
				c.Sh("echo new >/data/new && echo new >/none/here/new && echo new >/link/x/new && ! touch /x 2>/dev/null")
				if got := c.Sh("grep -c ' /sys/fs/cgroup' /proc/self/mountinfo >/dev/null && grep ' /dev/shm " +
					"' /proc/self/mountinfo | grep -c volumes; true"); got != "0" {
					t.Errorf("/dev/shm is not the pod's: %q", got)
				}
				if mapped {
					var st syscall.Stat_t
					if err := syscall.Stat(filepath.Join(n.Root, "containers", c.ID, "volumes/0/new"), &st); err != nil ||
						st.Uid != 300000 {
						t.Errorf("on the node a file of the container's root belongs to %d, %v", st.Uid, err)
					}
				}
				capability := make([]byte, 64)
				length, err := unix.Getxattr(filepath.Join(n.Root, "containers", c.ID, "volumes/0/sub/capable"),
					"security.capability", capability)
				want := netBind
				if mapped { // version 3 names the root whose namespace it is for
					want = "\x01\x00\x00\x03" + netBind[4:] + string(binary.LittleEndian.AppendUint32(nil, 300000))
				}
				if err != nil || string(capability[:length]) != want {
					t.Errorf("a file capability is %q, %v, want %q", capability[:length], err, want)
				}
				if other := p.Run(withVolumes); other.Sh("ls /data") != "file\nhard\nsoft\nsub" {
					t.Errorf("another container's /data: %q", other.Sh("ls /data"))
				}
				c.Remove()
				if exists(filepath.Join(n.Root, "containers", c.ID)) {
					t.Error("the volumes outlive their container")
				}
			})
		}
	}
}

func TestAMountTakesThePlaceOfAnImagesVolume(t *testing.T) {
	n := nodetest.Shared(t)
	withVolumes := volumeImage(t, n)
	p := nodetest.RunPod(t, n)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := p.Run(withVolumes, nodetest.Mounts(
		&cri.Mount{HostPath: dir, ContainerPath: "/data/"},
		&cri.Mount{HostPath: dir, ContainerPath: "/real/x"}, // where /link/x leads to
	))
	if got := c.Sh("ls /data /link/x"); got != "/data:\nmine\n\n/link/x:\nmine" {
		t.Errorf("got %q", got)
	}
}

func TestAVolumeOfAnImageThatCannotBe(t *testing.T) {
	nodetest.BerthOnly(t, "its answers differ")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for claim, declared := range map[string]string{"its root": "/", "a file": "/etc/file", "leads out": "/x/../.."} {
		t.Run(claim, func(t *testing.T) {
			r, host := broken(t, n)
			push(t, r, "x:1", image(t, registrytest.WithBusybox(), registrytest.WithFiles(map[string]string{"etc/file": claim}),
				registrytest.Volumes(declared)))
			_, err := p.TryCreate(func(c *cri.ContainerConfig) { c.Image.Image = host + "/x:1" })
			nodetest.WantCode(t, err, codes.InvalidArgument)
			if err != nil && !strings.Contains(err.Error(), "volume") {
				t.Errorf("the error does not say what is wrong: %v", err)
			}
		})
	}
}

func TestVolumesOfAnImageSurviveTheDaemon(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	withVolumes := volumeImage(t, n)
	running, created := p.Run(withVolumes), p.Create(withVolumes)
	running.Sh("echo kept >/data/new")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if got := running.Sh("cat /data/new"); got != "kept" {
		t.Errorf("got %q", got)
	}
	created.Start()
	if got := created.Sh("cat /data/file"); got != "from the image" {
		t.Errorf("got %q", got)
	}
}

// create makes a container through v1alpha2, which has fields for volumes and quotas.
func create(t *testing.T, p *nodetest.Pod, edits ...nodetest.ContainerEdit) (*nodetest.Container, error) {
	t.Helper()
	config := p.ContainerConfig(edits...)
	nodetest.Pull(t, p.Node, config.Image.Image)
	made, err := nodetest.DialV1alpha2(p.Node).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, SandboxConfig: p.Config, Config: config})
	if err != nil {
		return nil, err
	}
	return &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config}, nil
}

// runNamed makes and starts one.
func runNamed(t *testing.T, p *nodetest.Pod, edits ...nodetest.ContainerEdit) *nodetest.Container {
	t.Helper()
	c, err := create(t, p, edits...)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c
}

// named mounts the volume of a name.
func named(t *testing.T, name, at string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) {
		m := &cri.Mount{ContainerPath: at}
		add(t, m, &pouch.Mount{Name: name})
		c.Mounts = append(c.Mounts, m)
	}
}

// removeVolume removes one through v1alpha2.
func removeVolume(t *testing.T, n *node.Node, name string) error {
	_, err := nodetest.DialV1alpha2(n).Volumes.RemoveVolume(nodetest.Context(t),
		&pouch.RemoveVolumeRequest{VolumeName: name})
	return err
}

func TestANamedVolumeOutlivesItsContainers(t *testing.T) {
	nodetest.BerthOnly(t, "it has no volumes")
	n := nodetest.Shared(t)
	withVolumes := volumeImage(t, n)
	name := "v_" + filepath.Base(t.TempDir()) + "-1"
	p, mapped := nodetest.RunPod(t, n), nodetest.RunPod(t, n,
		podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(400000, 65536)}))
	// Made and filled in a user namespace, it has the image's own owners.
	first := runNamed(t, mapped, withVolumes, named(t, name, "/data"))
	if got := first.Sh(
		"stat -c '%a %u:%g' /data /data/file; cat /data/soft; stat -c %h /data/hard; echo first >/data/new"); got !=
		"3770 1001:1002\n640 1003:1004\nfrom the image2" {
		t.Errorf("it begins with %q", got)
	}
	path := filepath.Join(n.Root, "volumes", name, "data")
	for file, want := range map[string]uint32{"file": 1003, "new": 0} {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(path, file), &st); err != nil || st.Uid != want {
			t.Errorf("on the node %s belongs to %d, %v, want %d", file, st.Uid, err, want)
		}
	}
	second := runNamed(t, p, named(t, name, "/mnt"))
	if got := second.Sh("stat -c %u:%g /mnt/file /mnt/new; cat /mnt/new; rm /mnt/file; echo second >/mnt/new"); got !=
		"1003:1004\n0:1002\nfirst" {
		t.Errorf("another pod sees %q", got)
	}
	if got := first.Sh("cat /data/new"); got != "second" {
		t.Errorf("the first one sees %q", got)
	}
	st := pouchStatus(t, nodetest.DialV1alpha2(n), first.ID)
	if ext := added(t, st, &pouch.ContainerStatus{}); len(ext.Volumes) != 5 || ext.Volumes["/data"] == nil ||
		ext.Volumes["/none/here"] == nil {
		t.Errorf("the status has volumes %v", ext.Volumes)
	}
	for api, mounts := range map[string][]*cri.Mount{"v1alpha2": st.Mounts, "v1": first.Status().Mounts} {
		if len(mounts) != 1 || mounts[0].HostPath != path {
			t.Errorf("%s: the status has mounts %v", api, mounts)
		}
	}
	// In use, by a running container and by an ended one, it stays.
	for _, c := range []*nodetest.Container{first, second} {
		err := removeVolume(t, n, name)
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if err != nil && (!strings.Contains(err.Error(), c.ID[:12]) ||
			!strings.Contains(err.Error(), c.Config.Metadata.Name)) {
			t.Errorf("the error does not name %s: %v", c.Config.Metadata.Name, err)
		}
		c.Stop(0)
		nodetest.WantCode(t, removeVolume(t, n, name), codes.FailedPrecondition)
		c.Remove()
	}
	// It is not filled again, and read-only where it is asked for.
	third := runNamed(t, p, withVolumes, named(t, name, "/data"), func(c *cri.ContainerConfig) {
		c.Mounts[0].Readonly = true
	})
	if got := third.Sh("cat /data/new; ls /data; ! touch /data/x 2>/dev/null"); got != "second\nhard\nnew\nsoft\nsub" {
		t.Errorf("later it holds %q", got)
	}
	third.Remove()
	if err := removeVolume(t, n, name); err != nil {
		t.Error(err)
	}
	nodetest.WantCode(t, removeVolume(t, n, name), codes.NotFound)
	if exists(filepath.Dir(path)) {
		t.Error("it is still there")
	}
}

func TestAVolumeThatCannotBe(t *testing.T) {
	nodetest.BerthOnly(t, "it has no volumes")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for claim, edit := range map[string]nodetest.ContainerEdit{
		"leads out":       named(t, "../x", "/x"),
		"is hidden":       named(t, ".x", "/x"),
		"has a host path": func(c *cri.ContainerConfig) { named(t, "x", "/x")(c); c.Mounts[0].HostPath = "/tmp" },
		"is at the root":  named(t, "x", "/"),
		"is at a file":    named(t, "x", "/bin/busybox"),
		"is at no path":   named(t, "x", "x"),
	} {
		_, err := create(t, p, edit)
		if nodetest.WantCode(t, err, codes.InvalidArgument); t.Failed() {
			t.Fatal(claim)
		}
	}
	for _, bad := range []string{"", "..", "a/b", "../volumes"} {
		nodetest.WantCode(t, removeVolume(t, n, bad), codes.InvalidArgument)
	}
	nodetest.WantCode(t, removeVolume(t, n, "no-such"), codes.NotFound)
	left, err := os.ReadDir(filepath.Join(n.Root, "volumes"))
	if err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == "x" }) {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestTheCommandLineLooksAfterVolumes(t *testing.T) {
	nodetest.BerthOnly(t, "it has no volumes")
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	berth := func(fails bool, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(binaries, "berth"),
			append([]string{"--address", n.Address, "--data-dir", t.TempDir(), "volume"}, args...)...)
		out, err := cmd.CombinedOutput()
		if (err != nil) != fails {
			t.Fatalf("berth volume %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if got := berth(false, "create", "used"); got != "used\n" {
		t.Errorf("create: %q", got)
	}
	if says := berth(true, "create", "used", "/x", "right"); !strings.Contains(says, `"used" exists already`) ||
		!strings.Contains(says, `volume name "/x"`) || !strings.HasPrefix(says, "right\n") {
		t.Errorf("create of one that is there, of one that cannot be, and of another: %s", says)
	}
	if got := berth(false, "ls", "--unused", "-q"); got != "right\nused\n" {
		t.Errorf("ls --unused of those that were created: %q", got)
	}
	used := runNamed(t, p, named(t, "used", "/v"))
	runNamed(t, p, named(t, "left", "/v"), named(t, "right", "/w")).Remove()
	used.Sh("head -c 100000 /dev/zero >/v/file")
	list := berth(false, "ls")
	for _, want := range []string{"VOLUME", "used", "left", "right", used.Config.Metadata.Name} {
		if !strings.Contains(list, want) {
			t.Errorf("ls lacks %q: %s", want, list)
		}
	}
	if got := berth(false, "ls", "--unused", "-o", "json"); strings.Contains(got, `"used"`) ||
		!strings.Contains(got, `"left"`) {
		t.Errorf("ls --unused: %s", got)
	}
	var detail []struct {
		Name, Path string
		Containers []string
		UsedBytes  int
		InodesUsed int
	}
	if err := json.Unmarshal([]byte(berth(false, "inspect", "used")), &detail); err != nil || len(detail) != 1 ||
		detail[0].UsedBytes < 100000 || detail[0].InodesUsed != 2 || len(detail[0].Containers) != 1 ||
		!exists(filepath.Join(detail[0].Path, "file")) {
		t.Errorf("inspect: %+v, %v", detail, err)
	}
	if says := berth(true, "rm", "used"); !strings.Contains(says, used.Config.Metadata.Name) {
		t.Errorf("rm of what is used: %s", says)
	}
	if says := berth(true, "rm", "no-such"); !strings.Contains(says, "berth volume ls") {
		t.Errorf("rm of nothing: %s", says)
	}
	if got := berth(false, "rm", "left"); got != "left\n" {
		t.Errorf("rm: %q", got)
	}
	if got := berth(false, "prune", "--dry-run"); got != "right\n" {
		t.Errorf("prune --dry-run: %q", got)
	}
	if says := berth(true, "prune"); !strings.Contains(says, "give -f, or --dry-run") ||
		!strings.Contains(berth(false, "ls", "-q"), "right\n") {
		t.Errorf("prune without a terminal: %s", says)
	}
	asked := commandLine(t, n, "volume", "prune") // somebody says no
	shown := terminal(t, asked)
	shown.await(t, "Remove these? [y/N] ")
	shown.write(t, "n\r")
	if err := asked.Wait(); err == nil || !strings.Contains(berth(false, "ls", "-q"), "right\n") {
		t.Errorf("a prune that was not confirmed: %v", err)
	}
	if got := berth(false, "prune", "-f"); got != "right\n" {
		t.Errorf("prune: %q", got)
	}
	if got := berth(false, "prune", "--force"); got != "" || !strings.Contains(berth(false, "ls"), "used") {
		t.Errorf("prune again: %q", got)
	}
}

// TestWhatIsInVolumesOfAnImageIsCounted as what the container has written: a kubelet evicts pods by that figure. Seen
// to fail with the writable layer alone measured.
func TestWhatIsInVolumesOfAnImageIsCounted(t *testing.T) {
	nodetest.BerthOnly(t, "others count less")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(volumeImage(t, n))
	const written = 5 << 20
	c.Sh("head -c 5242880 /dev/zero >/data/new")
	nodetest.Eventually(t, 30*time.Second, "what was written is in the statistics", func() error {
		r, err := n.Runtime.ContainerStats(nodetest.Context(t), &cri.ContainerStatsRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		if used := r.Stats.GetWritableLayer().GetUsedBytes().GetValue(); used < written {
			return fmt.Errorf("%d bytes are counted", used)
		}
		return nil
	})
}
