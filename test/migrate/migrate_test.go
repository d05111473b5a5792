package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// EnvContainerd asks for a containerd 2 beside Debian's. It is built once, which takes minutes.
const EnvContainerd = "BERTH_MIGRATE"

func TestMain(m *testing.M) { nodetest.Main(m) }

// old is a node of containerd that is to go.
type old struct {
	*node.Node
	t        *testing.T
	registry *registrytest.Registry
	config   string // its path
	berth    string // the program
}

// prepare returns the berth program and a registry.
func prepare(t *testing.T) (berth string, registry *registrytest.Registry) {
	t.Helper()
	nodetest.Root(t)
	nodetest.BerthOnly(t, "the node that it goes to is Berth's")
	programs, err := node.Binaries(nodetest.Context(t))
	if err == nil {
		registry, err = node.NewRegistry()
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(programs, "berth"), registry
}

func startOld(t *testing.T, binaries string) *old {
	t.Helper()
	if _, err := exec.LookPath("containerd"); err != nil && binaries == "" {
		t.Skipf("there is no containerd to come from: %v", err)
	}
	berth, registry := prepare(t)
	n, err := node.StartContainerd(nodetest.Context(t), node.Options{Registry: registry, Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd said last:\n%s", n.LogTail())
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &old{
		Node: n, t: t, registry: registry, config: filepath.Join(n.Dir, "config.toml"),
		berth: berth,
	}
}

// migrate runs the command with Berth's configuration in dir.
func (o *old) migrate(dir string, args ...string) (string, error) {
	args = append([]string{"migrate", "containerd", "--config", o.config, "--to", dir}, args...)
	cmd := exec.CommandContext(nodetest.Context(o.t), o.berth, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// works runs a pod of an image on a node, removes it, and says what the image is there.
func works(t *testing.T, n *node.Node, image string) *cri.Image {
	t.Helper()
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Image.Image, c.Command = image, []string{"sh", "-c", "sleep 3600"}
	})
	if got := strings.TrimSpace(c.Sh("echo runs")); got != "runs" {
		t.Errorf("a pod of %s says %q", image, got)
	}
	p.Stop()
	p.Remove()
	return imageOf(t, n, image)
}

func imageOf(t *testing.T, n *node.Node, ref string) *cri.Image {
	t.Helper()
	status, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Fatal(err)
	}
	return status.GetImage()
}

// tree is all files below a directory, with their modes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += digest.FromBytes(data).String()
		}
		files[path] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// containerds are the directories of those that a node may come from; empty: Debian's.
func containerds(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{"Debian's": ""}
	if os.Getenv(EnvContainerd) == "" {
		return dirs
	}
	dir, err := kubernetes.BuildContainerd(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dirs["containerd 2"] = dir
	return dirs
}

func TestANodeGoesFromContainerdToBerthAndBackWithoutARegistry(t *testing.T) {
	for name, binaries := range containerds(t) {
		t.Run(name, func(t *testing.T) { thereAndBack(t, binaries) })
	}
}

func thereAndBack(t *testing.T, binaries string) {
	o := startOld(t, binaries)
	name, pinned, _ := o.push("by-digest")
	byDigest := name + "@" + pinned
	broken, _, layer := o.push("broken")
	broken += ":1"
	for _, ref := range []string{node.Busybox, byDigest, broken} {
		nodetest.Pull(t, o.Node, ref)
	}
	before := works(t, o.Node, node.Busybox)

	// A containerd that runs is asked. Nothing is written.
	dry := t.TempDir()
	out, err := o.migrate(dry, "--dry-run")
	if err != nil || !strings.Contains(out, "would import "+node.Busybox) || !strings.Contains(out, "would write "+dry) {
		t.Errorf("a dry run: %v:\n%s", err, out)
	}
	if files := tree(t, dry); len(files) != 1 {
		t.Errorf("a dry run has written %v", files)
	}

	// An image has lost a layer, as with discard_unpacked_layers; it is told, and the others come all the same.
	if err := o.Terminate(); err != nil {
		t.Fatal(err)
	}
	discard(t, o, layer)
	if err := o.registry.Close(); err != nil {
		t.Fatal(err)
	}
	theirs := tree(t, o.blobs())
	var first map[string]string
	etc := ""
	preload := filepath.Join(t.TempDir(), "preload")
	b := nodetest.Start(t, node.Options{
		Registry: o.registry, CNI: true,
		Tables: fmt.Sprintf("[image]\npreload_dir = %q\n", preload),
		Prepare: func(n *node.Node) error {
			var err error
			if etc, err = n.MoveConfig(); err != nil {
				return err
			}
			first = tree(t, etc)
			out, err := o.migrate(etc)
			t.Logf("berth migrate containerd:\n%s", out)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(out, broken+" has to be pulled again") {
				return fmt.Errorf("the image without its layer is not told: %w", err)
			}
			return nil
		},
	})
	nodetest.Eventually(t, time.Minute, "the images are there", func() error {
		for _, ref := range []string{node.Busybox, byDigest} {
			if imageOf(t, b, ref) == nil {
				return fmt.Errorf("%s is not", ref)
			}
		}
		return nil
	})
	nodetest.Eventually(t, time.Minute, "the archives are gone", func() error {
		if entries, err := os.ReadDir(preload); err != nil || len(entries) > 0 {
			return fmt.Errorf("there are %v, %v", entries, err)
		}
		return nil
	})
	after := works(t, b, node.Busybox)
	works(t, b, byDigest)
	if after.Id != before.Id || !slices.Equal(after.RepoTags, before.RepoTags) ||
		!slices.Equal(after.RepoDigests, before.RepoDigests) {
		t.Errorf("the image was\n%v\nand is\n%v", before, after)
	}
	status, err := b.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	handlers := status.GetRuntimeHandlers()
	if !slices.ContainsFunc(handlers, func(h *cri.RuntimeHandler) bool { return h.Name == "runc" }) {
		t.Errorf("the handlers of containerd are not there: %v", handlers)
	}

	// Once more, with berthd there: nothing is imported a second time, and an image that is gone comes back at once.
	if _, err := b.Images.RemoveImage(nodetest.Context(t), &cri.RemoveImageRequest{
		Image: &cri.ImageSpec{Image: byDigest},
	}); err != nil {
		t.Fatal(err)
	}
	out, _ = o.migrate(etc, "--address", b.Address)
	t.Logf("once more:\n%s", out)
	if !strings.Contains(out, "the configuration is as it was") ||
		strings.Contains(out, "imported "+before.RepoDigests[0]) {
		t.Errorf("a second run:\n%s", out)
	}
	works(t, b, byDigest)

	// And back.
	if err := b.Terminate(); err != nil {
		t.Fatal(err)
	}
	if out, err := o.migrate(etc, "--revert"); err != nil {
		t.Errorf("revert: %v\n%s", err, out)
	}
	if last := tree(t, etc); fmt.Sprint(last) != fmt.Sprint(first) {
		t.Errorf("before:\n%v\nafter:\n%v", first, last)
	}
	if entries, err := os.ReadDir(preload); err == nil {
		t.Errorf("archives are left: %v", entries)
	}
	if now := tree(t, o.blobs()); fmt.Sprint(now) != fmt.Sprint(theirs) {
		t.Error("containerd's store is another one")
	}
	if err := o.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	works(t, o.Node, node.Busybox)
}

// push makes an image of a name of its own, with a layer that no other image has, and returns the name, the digest,
// and the layer's.
func (o *old) push(name string) (ref, image string, layer digest.Digest) {
	o.t.Helper()
	img, err := registrytest.Image(registrytest.WithBusybox(), registrytest.Layer(registrytest.File("name", 0o644, name)),
		registrytest.Env("PATH=/bin"))
	if err != nil {
		o.t.Fatal(err)
	}
	if err := o.registry.Push(name+":1", img); err != nil {
		o.t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		o.t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		o.t.Fatal(err)
	}
	last, err := layers[len(layers)-1].Digest()
	if err != nil {
		o.t.Fatal(err)
	}
	return node.RegistryHost + "/" + name, d.String(), digest.Digest(last.String())
}

// blobs is where containerd has them.
func (o *old) blobs() string {
	return filepath.Join(o.Root, "io.containerd.content.v1.content", "blobs")
}

// discard takes a layer from containerd's store.
func discard(t *testing.T, o *old, layer digest.Digest) {
	t.Helper()
	if err := os.Remove(filepath.Join(o.blobs(), "sha256", layer.Encoded())); err != nil {
		t.Fatal(err)
	}
}
