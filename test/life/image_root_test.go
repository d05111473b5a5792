package life

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// lookOfRoot pulls an image with a root directory of mode 1777 that belongs to 9:9.
func lookOfRoot(t *testing.T, n *node.Node) *cri.ImageSpec {
	t.Helper()
	img, err := registrytest.Image(registrytest.WithBusybox(),
		registrytest.Layer(registrytest.Dir(".", 0o1777).Owned(9, 9)),
		registrytest.Layer(registrytest.File("a", 0o644, "a")))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push("look-of-root:1", img); err != nil {
		t.Fatal(err)
	}
	image := &cri.ImageSpec{Image: node.RegistryHost + "/look-of-root:1"}
	nodetest.Pull(t, n, image.Image)
	return image
}

// TestTheRootLooksAsItsImageSays: most layers of builders have no entry for the root directory, and do not change it.
func TestTheRootLooksAsItsImageSays(t *testing.T) {
	n := nodetest.Shared(t)
	image := lookOfRoot(t, n)
	c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) { c.Image = image },
		nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: image, Readonly: true}))
	if got := c.Sh("stat -c %a:%u:%g / /image"); got != "1777:9:9\n1777:9:9" {
		t.Errorf("the root, and that of an image that is a volume: %q", got)
	}
}

// TestTheRootOfARestoredContainerKeepsItsLook: as the container has changed it. The writable layer in an archive of
// another runtime says nothing of the root if the container has not changed it.
func TestTheRootOfARestoredContainerKeepsItsLook(t *testing.T) {
	n := checkpointNode(t, "")
	image := lookOfRoot(t, n)
	ofImage := func(c *cri.ContainerConfig) { c.Image = image }
	for change, want := range map[string]string{"chmod 0711 / && chown 3:4 /": "711:3:4", ":": "1777:9:9"} {
		archive := filepath.Join(t.TempDir(), "c.tar")
		c := nodetest.RunPod(t, n).Run(counting, ofImage)
		waitCount(t, c, 1)
		c.Sh("touch /written && " + change)
		checkpoint(t, n, c, archive)
		if change == ":" {
			archive = rewritten(t, archive, "rootfs-diff.tar", withoutRoot(t))
		}
		r := nodetest.RunPod(t, n).Run(fromArchive(archive))
		if got := r.Sh("stat -c %a:%u:%g / && test -e /written"); got != want {
			t.Errorf("%s: the root is %q, want %q", change, got, want)
		}
	}
}

// withoutRoot leaves the entry for the root directory out of a tar.
func withoutRoot(t *testing.T) func([]byte) []byte {
	return func(data []byte) []byte {
		var out bytes.Buffer
		in, to := tar.NewReader(bytes.NewReader(data)), tar.NewWriter(&out)
		for {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Clean(h.Name) == "." {
				continue
			}
			err = to.WriteHeader(h)
			if err == nil {
				_, err = io.Copy(to, in)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
}
