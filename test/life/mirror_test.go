package life

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestOneMirrorServesANodeWithoutInternet: images of all registries come from the mirror that `_default` names, and
// those that the node needs to live are pinned, so that a kubelet's garbage collection leaves them.
func TestOneMirrorServesANodeWithoutInternet(t *testing.T) {
	n := nodetest.Start(t, node.Options{Tables: "[image]\npinned = [\"registry.k8s.io/*\"]\n"})
	nodetest.BerthOnly(t, "its pinned images are its own")
	fallback := filepath.Join(n.HostsDir, "_default")
	if err := os.Mkdir(fallback, 0o755); err != nil {
		t.Fatal(err)
	}
	mirror := n.Registry.URL()
	hosts := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror, mirror)
	if err := os.WriteFile(filepath.Join(fallback, "hosts.toml"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	name := node.Busybox[len(node.RegistryHost):]
	for registry, pinned := range map[string]bool{"registry.k8s.io": true, "quay.invalid": false} {
		spec := &cri.ImageSpec{Image: registry + name}
		pulled, err := n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: spec})
		if err != nil {
			t.Errorf("pull %s: %v", spec.Image, err)
			continue
		}
		status, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: spec})
		if err != nil || status.Image == nil || status.Image.Pinned != pinned {
			t.Errorf("%s (%s): %v, %v", spec.Image, pulled.ImageRef, status, err)
		}
		if _, err := n.Images.RemoveImage(nodetest.Context(t), &cri.RemoveImageRequest{Image: spec}); err != nil {
			t.Error(err)
		}
	}
	// What the mirror lacks is not asked of the registry, whose name nobody knows.
	_, err := n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: "quay.invalid/lacking:1"},
	})
	nodetest.WantCode(t, err, codes.NotFound)
}
