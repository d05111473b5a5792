package life

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// volumeImage is an image that declares volumes: one with content, one without, one behind a link, and one that every container
// has something at.
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
		for _, handler := range []string{"", "runc"} {
			if handler != "" && (n.Handlers[handler] == "" || mapped) { // Debian's cannot map the owners of layers
				continue
			}
			t.Run(handler+map[bool]string{true: " in a user namespace"}[mapped], func(t *testing.T) {
				var edits []nodetest.PodEdit
				if mapped {
					edits = append(edits, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(300000, 65536)}))
				}
				p := nodetest.RunPodHandler(t, n, handler, edits...)
				c := p.Run(withVolumes, nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }))
				if got := c.Sh("stat -c '%a %u:%g' /data /data/file /data/sub /none/here; cat /data/file /data/soft /real/x/file; stat -c %h /data/hard"); got !=
					"3770 1001:1002\n640 1003:1004\n700 0:0\n755 0:0\nfrom the imagefrom the imagebehind a link2" {
					t.Errorf("the volumes begin with %q", got)
				}
				// The root file system is read-only, its volumes are not.
				c.Sh("echo new >/data/new && echo new >/none/here/new && echo new >/link/x/new && ! touch /x 2>/dev/null")
				if got := c.Sh("grep -c ' /sys/fs/cgroup' /proc/self/mountinfo >/dev/null && grep ' /dev/shm ' /proc/self/mountinfo | grep -c volumes; true"); got != "0" {
					t.Errorf("/dev/shm is not the pod's: %q", got)
				}
				if mapped {
					var st syscall.Stat_t
					if err := syscall.Stat(filepath.Join(n.Root, "containers", c.ID, "volumes/0/new"), &st); err != nil || st.Uid != 300000 {
						t.Errorf("on the node a file of the container's root belongs to %d, %v", st.Uid, err)
					}
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
