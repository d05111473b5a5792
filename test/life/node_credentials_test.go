package life

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestANodePullsThroughAProxyWithItsOwnCredentials: a registry that only a proxy reaches gives an image for what
// a credential helper tells, and refuses it where the pull brings credentials that are wrong. What the file says
// otherwise counts at once.
func TestANodePullsThroughAProxyWithItsOwnCredentials(t *testing.T) {
	const user, password = "node", "hunter2"
	registry, err := registrytest.New(registrytest.WithBasicAuth(user, password))
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	img, err := registrytest.Image(registrytest.WithFiles(map[string]string{"a": "b"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a:1", "a:2"} {
		if err := registry.Push(name, img); err != nil {
			t.Fatal(err)
		}
	}
	proxy := registrytest.NewProxy(func(address string) (string, bool) {
		return registry.Addr(), address == "private.invalid:80"
	})
	defer proxy.Close()

	dir := t.TempDir()
	file, bin := filepath.Join(dir, "config.json"), filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho '{\"Username\":%q,\"Secret\":%q}'\n", user, password)
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"credHelpers": {"private.invalid": "test"}}`)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := nodetest.Start(t, node.Options{
		Tables: fmt.Sprintf("[image]\ncredentials = %q\nhttp_proxy = \"http://%s\"\n", file, proxy.Addr()),
	})
	nodetest.BerthOnly(t, "its configuration is its own")
	hosts := filepath.Join(n.HostsDir, "private.invalid")
	if err := os.Mkdir(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	// Over plain HTTP a password goes only where the file says so.
	const text = "server = \"http://private.invalid\"\nberth_credentials = \"plain\"\n"
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	pull := func(tag string, auth *cri.AuthConfig) error {
		_, err := n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{
			Image: &cri.ImageSpec{Image: "private.invalid/a:" + tag}, Auth: auth,
		})
		return err
	}
	nodetest.WantCode(t, pull("1", &cri.AuthConfig{Username: user, Password: "wrong"}), codes.Unauthenticated)
	if err := pull("1", nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(proxy.Asked(), "HEAD private.invalid") {
		t.Errorf("the proxy was asked for %q", proxy.Asked())
	}
	write(`{}`)
	nodetest.WantCode(t, pull("2", nil), codes.Unauthenticated)
	if err := os.Chmod(file, 0o622); err != nil {
		t.Fatal(err)
	}
	nodetest.WantCode(t, pull("2", nil), codes.FailedPrecondition)
}
