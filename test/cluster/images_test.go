package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/registrytest"
	"berth/test/conformance/debian"
	"berth/test/kubernetes"
	"berth/test/node"
)

// The images of the suite beside the standard ones.
const (
	dnsImage = node.RegistryHost + "/coredns:1"
	// agnhost has Kubernetes' program for tests of networks, and Debian's busybox with shared libraries, whose applets
	// find names by DNS.
	agnhost = node.RegistryHost + "/agnhost:1"
)

// pushImages builds the images and stores them.
func pushImages(ctx context.Context, r *registrytest.Registry) error {
	push := func(ref string, opts ...registrytest.ImageOption) error {
		image, err := registrytest.Image(opts...)
		if err != nil {
			return err
		}
		return r.Push(strings.TrimPrefix(ref, node.RegistryHost+"/"), image)
	}
	dns, err := kubernetes.CoreDNS.Build(ctx)
	if err != nil {
		return err
	}
	if err := push(dnsImage, registrytest.WithBinary(dns, "coredns"), registrytest.Entrypoint("/coredns")); err != nil {
		return err
	}
	program, err := kubernetes.Agnhost.Build(ctx)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	packages, err := debian.Open(filepath.Join(cache, "berth", "conformance", "packages"))
	if err != nil {
		return err
	}
	defer packages.Close()
	if err := packages.Add(ctx, "busybox"); err != nil {
		return err
	}
	shell, err := packages.Programs(ctx, "bin/busybox")
	if err != nil {
		return err
	}
	for _, applet := range []string{
		"sh", "cat", "date", "echo", "grep", "hostname", "ls", "nslookup", "rm", "sleep", "test", "timeout", "touch", "wget",
	} {
		shell = append(shell, registrytest.Symlink("bin/"+applet, "busybox"))
	}
	return push(agnhost, registrytest.Layer(shell...), registrytest.WithBinary(program, "agnhost"),
		registrytest.Env("PATH=/bin:/usr/bin:/"), registrytest.Entrypoint("/agnhost"))
}
