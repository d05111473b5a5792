package images

import (
	"context"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"berth/internal/registrytest"
	"berth/test/conformance/debian"
)

// Servers are static programs that Kubernetes' suite of a cluster runs in pods.
type Servers struct {
	APIServer, Etcd string // paths: k8s.io/sample-apiserver, and etcd
}

// ForCluster are the images of Kubernetes' suite of a cluster: those of its suite of a node, two servers, and programs
// that ask for names.
func ForCluster(ctx context.Context, packages string, from Sources, servers Servers) (Images, error) {
	built, err := ForNode(ctx, packages, from)
	if err != nil {
		return nil, err
	}
	names, err := nameTools(ctx, packages)
	if err != nil {
		return nil, err
	}
	const suite = "e2e-test-images/"
	for _, name := range []string{suite + "agnhost:2.55", suite + "agnhost:2.66.1", suite + "glibc-dns-testing:2.1.1"} {
		if built[name], err = mutate.AppendLayers(built[name], names); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
	}
	for name, program := range map[string]struct{ at, from string }{
		suite + "sample-apiserver:1.29.2": {"sample-apiserver", servers.APIServer},
		"etcd:3.7.0-0":                    {"usr/local/bin/etcd", servers.Etcd},
	} {
		data, err := os.ReadFile(program.from)
		if err != nil {
			return nil, err
		}
		built[name], err = registrytest.Image(registrytest.Label("berth.test.image", name), registrytest.Env(searchPath),
			registrytest.Layer(registrytest.Dir("tmp", 0o1777), registrytest.File(program.at, 0o755, string(data))),
			registrytest.Entrypoint("/"+program.at))
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
	}
	return built, nil
}

// nameTools are dig and getent, which finds names in /etc/hosts first.
func nameTools(ctx context.Context, packages string) (v1.Layer, error) {
	p, err := debian.Open(packages)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := p.Add(ctx, "bind9-dnsutils", "bind9-libs", "libc-bin"); err != nil {
		return nil, err
	}
	programs, err := p.Programs(ctx, "usr/bin/dig", "usr/bin/getent")
	if err != nil {
		return nil, err
	}
	return layer(append(programs, registrytest.File("etc/nsswitch.conf", 0o644, "hosts: files dns\n")))
}
