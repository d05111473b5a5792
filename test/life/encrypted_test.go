package life

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image/encryption/encryptiontest"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAnEncryptedImageRunsOnANodeThatHasItsKey: as soon as the key is in the directory. Seen to fail without the
// decryption.
func TestAnEncryptedImageRunsOnANodeThatHasItsKey(t *testing.T) {
	nodetest.BerthOnly(t, "its configuration is its own")
	keys := t.TempDir()
	n := nodetest.Start(t, node.Options{Tables: fmt.Sprintf("[image]\ndecryption_keys_path = %q\n", keys)})
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := registrytest.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	tar, err := registrytest.Tar(append(entries, registrytest.File("secret", 0o644, "hunter2"))...)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := registrytest.NewLayer(tar, registrytest.Gzip, false)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := encryptiontest.Encrypt(plain, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	img, err := registrytest.Image(registrytest.ReadyLayer(layer))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push("encrypted:1", img); err != nil {
		t.Fatal(err)
	}
	ref := node.RegistryHost + "/encrypted:1"
	_, err = n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	digest, _ := layer.Digest()
	if text := status.Convert(err).Message(); !strings.Contains(text, "layer "+digest.String()) ||
		!strings.Contains(text, "none of the 0 keys") {
		t.Errorf("without the key: %s", text)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(keys, "node.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, ref)
	c := p.Run(func(c *cri.ContainerConfig) { c.Image.Image = ref })
	if got := c.Sh("cat /secret"); got != "hunter2" {
		t.Errorf("the container reads %q", got)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if f := examine(t, n)["configuration"]; f.Level != "poor" || !strings.Contains(f.Detail, file+" has the mode 0644") {
		t.Errorf("berth doctor: %+v", f)
	}
}
