package life

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestTheRootLooksAsItsImageSays: most layers of builders have no entry for the root directory, and do not change it.
func TestTheRootLooksAsItsImageSays(t *testing.T) {
	n := nodetest.Shared(t)
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
	c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) { c.Image = image },
		nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: image, Readonly: true}))
	if got := c.Sh("stat -c %a:%u:%g / /image"); got != "1777:9:9\n1777:9:9" {
		t.Errorf("the root, and that of an image that is a volume: %q", got)
	}
}
