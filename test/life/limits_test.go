package life

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// These are the limits that iSulad documents of itself, as far as they are of storage and lists; Berth has none
// of them.

func TestNamesMayHaveUnderscores(t *testing.T) {
	n := nodetest.Shared(t)
	named := func(name, namespace string) nodetest.PodEdit {
		return func(c *cri.PodSandboxConfig) {
			c.Metadata = &cri.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: "the_uid_of_" + t.Name()}
		}
	}
	// Joined by underscores, the names of these would be one.
	one, two := nodetest.RunPod(t, n, named("a_b", "c")), nodetest.RunPod(t, n, named("a", "b_c"))
	c := one.Run(func(c *cri.ContainerConfig) { c.Metadata.Name = "_a__b_0_" })
	pods, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*nodetest.Pod{one, two} {
		at := slices.IndexFunc(pods.Items, func(s *cri.PodSandbox) bool { return s.Id == p.ID })
		if at < 0 {
			t.Fatalf("%v is not listed", p.Config.Metadata)
		}
		if got := pods.Items[at].Metadata; got.Name != p.Config.Metadata.Name ||
			got.Namespace != p.Config.Metadata.Namespace || got.Uid != p.Config.Metadata.Uid {
			t.Errorf("%v is listed as %v", p.Config.Metadata, got)
		}
	}
	list, err := n.Runtime.ListContainers(nodetest.Context(t),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: one.ID}})
	if err != nil || len(list.Containers) != 1 || list.Containers[0].Id != c.ID ||
		list.Containers[0].Metadata.Name != "_a__b_0_" {
		t.Errorf("containers: %v, %v", list, err)
	}
}

func TestContainersOfAPodHaveALogOrNone(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	none := p.Run(nodetest.Sh("echo unseen; sleep 3600"), func(c *cri.ContainerConfig) { c.LogPath = "" })
	deep := p.Run(nodetest.Sh("echo seen; sleep 3600"), func(c *cri.ContainerConfig) {
		c.LogPath = "not/there/yet/" + c.Metadata.Name + ".log"
	})
	deep.WaitLog("seen")
	if s := none.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING || s.LogPath != "" {
		t.Errorf("without a log: %v, %q", s.State, s.LogPath)
	}
	if got := none.Sh("echo runs"); got != "runs" {
		t.Errorf("without a log: %q", got)
	}
	bare := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.LogDirectory = "" })
	if s := bare.Run(nodetest.Sh("echo unseen; sleep 3600")).Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("in a pod without a log directory: %v", s.State)
	}
}

func TestTwoContainersNeverWriteOneLog(t *testing.T) {
	nodetest.BerthOnly(t, "it lets them")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	at := func(path string) nodetest.ContainerEdit { return func(c *cri.ContainerConfig) { c.LogPath = path } }
	first := p.Run(at("one/log"))
	link := p.Config.LogDirectory + "-link"
	if err := os.Symlink(p.Config.LogDirectory, link); err != nil {
		t.Fatal(err)
	}
	linked := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.LogDirectory = link })
	second, third := p.Create(at("one//./log")), linked.Create(at("one/log"))
	for claim, c := range map[string]*nodetest.Container{"spelled otherwise": second, "through a link": third} {
		err := c.TryStart()
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if err != nil && (!strings.Contains(err.Error(), first.ID[:12]) || !strings.Contains(err.Error(), "one/log")) {
			t.Errorf("%s: the error names neither the container nor the file: %v", claim, err)
		}
	}
	// A container that has ended writes no more; one that takes its place may.
	first.Stop(0)
	third.Start()
	nodetest.WantCode(t, second.TryStart(), codes.FailedPrecondition)
}

// immutable keeps a directory from being changed, renamed or removed until the returned function is called.
func immutable(t *testing.T, dir string) (release func()) {
	t.Helper()
	const mark = 0x10 // FS_IMMUTABLE_FL
	set := func(on bool) error {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		flags &^= mark
		if on {
			flags |= mark
		}
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags))
	}
	if err := set(true); err != nil {
		t.Skipf("%s cannot be made immutable: %v", dir, err)
	}
	done := false
	release = func() {
		if !done {
			done = true
			if err := set(false); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(release)
	return release
}

func TestARemovalThatFailsHalfWayIsFinished(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "its directories differ")
	for _, by := range []string{"the next call", "the next start"} {
		for _, what := range []string{"containers", "trash", "pods"} {
			t.Run(fmt.Sprintf("by %s, %s", by, what), func(t *testing.T) {
				n := nodetest.Start(t, node.Options{})
				p := nodetest.RunPod(t, n)
				containers := []*nodetest.Container{p.Run(), p.Run(), p.Create()}
				dir := filepath.Join(n.Root, what)
				switch what {
				case "containers":
					dir = filepath.Join(dir, containers[1].ID)
				case "pods":
					dir = filepath.Join(dir, p.ID)
				}
				release := immutable(t, dir)
				remove := func() error {
					_, err := n.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: p.ID})
					return err
				}
				for range 2 {
					if err := remove(); err == nil {
						t.Fatal("a removal that cannot be is a success")
					}
				}
				// What is left can be seen, and does not run.
				list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
				if err != nil || len(list.Items) != 1 {
					t.Errorf("the pod is not listed any more: %v, %v", list, err)
				} else if what != "pods" && list.Items[0].State != cri.PodSandboxState_SANDBOX_NOTREADY {
					t.Errorf("the pod is %v", list.Items[0].State)
				}
				running, err := n.Runtime.ListContainers(nodetest.Context(t),
					&cri.ListContainersRequest{Filter: &cri.ContainerFilter{
						State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
				if err != nil || len(running.Containers) > 0 {
					t.Errorf("still running: %v, %v", running, err)
				}
				if by == "the next call" || what == "pods" {
					release()
					if err := remove(); err != nil {
						t.Errorf("the next call: %v", err)
					}
				} else {
					if err := n.Kill(); err != nil {
						t.Fatal(err)
					}
					release()
					if err := n.Restart(nodetest.Context(t)); err != nil {
						t.Fatal(err)
					}
				}
				left, err := n.Settled(30 * time.Second)
				if err != nil || left.Count() > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
}

func TestAnImageWhoseTagHasMovedIsListedByItsDigest(t *testing.T) {
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	ref := host + "/app:1"
	var ids, digests []string
	for i := range 2 {
		push(t, r, "app:1", image(t, registrytest.WithBusybox(), registrytest.WithFiles(
			map[string]string{"version": fmt.Sprint(host, i)}), registrytest.Cmd("/bin/busybox", "sleep", "3600")))
		if err := pull(t, n, ref, nil); err != nil {
			t.Fatal(err)
		}
		s, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if err != nil || s.Image == nil || len(s.Image.RepoDigests) != 1 {
			t.Fatalf("%v, %v", s, err)
		}
		ids, digests = append(ids, s.Image.Id), append(digests, s.Image.RepoDigests[0])
	}
	if ids[0] == ids[1] {
		t.Fatal("the tag has not moved")
	}
	list, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{nil, {ref}} {
		at := slices.IndexFunc(list.Images, func(img *cri.Image) bool { return img.Id == ids[i] })
		if at < 0 {
			t.Fatalf("image %d is not listed", i)
		}
		if img := list.Images[at]; !slices.Equal(img.RepoTags, want) || !slices.Equal(img.RepoDigests, digests[i:i+1]) {
			t.Errorf("image %d has tags %v and digests %v, want %v and %v", i, img.RepoTags, img.RepoDigests, want, digests[i])
		}
	}
	// It is still an image: containers are made of it by its digest, and it can be removed.
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Image.Image, c.Command = digests[0], []string{"/bin/busybox", "sleep", "3600"}
	})
	if got, err := c.Exec(10, "/bin/busybox", "cat", "/version"); err != nil || string(got.Stdout) != host+"0" {
		t.Errorf("a container of it: %v, %v", got, err)
	}
	c.Remove()
	if _, err := n.Images.RemoveImage(nodetest.Context(t),
		&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: digests[0]}}); err != nil {
		t.Error(err)
	}
	wantNoImage(t, n, ids[0])
}
