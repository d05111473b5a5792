package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/registrytest"
	"berth/test/conformance/debian"
)

// millisecondClock prints the time of day with milliseconds, again and again: that of busybox's nmeter which the suite
// uses, and which Debian's busybox lacks.
const millisecondClock = `#include <stdio.h>
#include <string.h>
#include <time.h>
int main(int argc, char **argv) {
	if (argc != 3 || strcmp(argv[1], "-d0") || strcmp(argv[2], "%3t")) {
		fprintf(stderr, "usage: nmeter -d0 %%3t\n");
		return 2;
	}
	for (;;) {
		struct timespec now;
		char text[16];
		clock_gettime(CLOCK_REALTIME, &now);
		strftime(text, sizeof text, "%H:%M:%S", localtime(&now.tv_sec));
		if (printf("%s.%03ld\n", text, now.tv_nsec / 1000000) < 0 || fflush(stdout))
			return 1;
	}
}
`

// wait waits until it is told to end.
const wait = `#include <signal.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
int main(void) {
	signal(SIGTERM, end);
	signal(SIGINT, end);
	for (;;) pause();
}
`

// Sources are files of Kubernetes that images of its suite of a node are made of.
type Sources struct {
	Agnhost, SampleDevicePlugin string // programs
	Directory                   string // test/images, where other files of images are
}

// ForNode are the images of Kubernetes' suite of a node, by repository and tag: those that need no more than Debian's
// packages and two programs of Kubernetes, whose paths are given. It has none for databases, drivers of hardware and
// benchmarks.
func ForNode(ctx context.Context, packages string, from Sources) (Images, error) {
	p, err := debian.Open(packages)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := p.Add(ctx, "busybox", "procps", "util-linux", "nginx", "bash", "netcat-openbsd", "curl", "iproute2",
		"hostname"); err != nil {
		return nil, err
	}
	// Debian's busybox drops variables whose names a shell cannot have; bash keeps them, as the shells of the public
	// images do. Its nc speaks no UDP.
	shell, err := userland(ctx, p, []string{"bin/busybox", "usr/bin/pgrep", "usr/bin/ipcs", "usr/bin/ipcmk", "bin/bash",
		"bin/nc.openbsd", "usr/bin/curl", "bin/ss", "bin/hostname"},
		map[string]string{"bin/sh": "bash", "bin/nc": "nc.openbsd", "usr/bin/nc": "/bin/nc.openbsd"})
	if err != nil {
		return nil, err
	}
	nginx, err := webServer(ctx, p)
	if err != nil {
		return nil, err
	}
	privileged, err := noNewPrivs(ctx)
	if err != nil {
		return nil, err
	}
	clock, err := compile(ctx, millisecondClock)
	if err != nil {
		return nil, err
	}
	waiter, err := compile(ctx, wait)
	if err != nil {
		return nil, err
	}
	host, err := os.ReadFile(from.Agnhost)
	if err != nil {
		return nil, err
	}
	plugin, err := os.ReadFile(from.SampleDevicePlugin)
	if err != nil {
		return nil, err
	}

	certificates, err := from.files("agnhost/porter", "localhost.crt", "localhost.key")
	if err != nil {
		return nil, err
	}

	built := Images{}
	add := func(name string, opts ...registrytest.ImageOption) {
		if err != nil {
			return
		}
		var image v1.Image
		// The label gives each image an ID of its own.
		opts = append(opts, registrytest.Label("berth.test.image", name), registrytest.Env(searchPath))
		if image, err = registrytest.Image(opts...); err != nil {
			err = fmt.Errorf("build %s: %w", name, err)
			return
		}
		built[name] = image
	}
	busybox := func(more ...registrytest.ImageOption) []registrytest.ImageOption {
		return append([]registrytest.ImageOption{registrytest.ReadyLayer(shell), registrytest.Cmd("sh")}, more...)
	}
	pause := []registrytest.ImageOption{registrytest.Layer(registrytest.File("pause", 0o755, waiter)),
		registrytest.Entrypoint("/pause")}
	for _, name := range []string{"pause:3.10.2", "pause:1"} { // the second is what containerd is told to make pods of
		add(name, pause...)
	}
	nmeter := registrytest.Layer(registrytest.File("usr/bin/nmeter", 0o755, clock))
	const suite = "e2e-test-images/"
	add(suite+"busybox:1.37.0-2", busybox(nmeter)...)
	// Specs of memory QoS name an older one.
	add(suite+"busybox:1.36.1-1", busybox(nmeter)...)
	for _, name := range []string{"nginx:1.27.0-2", "nginx:1.28.0-2"} {
		add(suite+name, registrytest.ReadyLayer(shell), registrytest.ReadyLayer(nginx), siteLayer(80), nginxCommand)
	}
	add(suite+"nonewprivs:1.4", registrytest.ReadyLayer(shell), privileged, registrytest.Entrypoint("/nonewprivs"))
	add(suite+"nonroot:1.5", busybox(registrytest.User("1234"))...)
	add(suite+"glibc-dns-testing:2.1.1", busybox()...)
	add(suite+"ipc-utils:1.4", busybox()...)
	for _, tag := range []string{"1.7", "1.8.0"} { // the second in a manifest
		add(suite+"sample-device-plugin:"+tag, registrytest.ReadyLayer(shell),
			registrytest.Layer(registrytest.File("sampledeviceplugin", 0o755, string(plugin))),
			registrytest.Entrypoint("/sampledeviceplugin"))
	}
	if err != nil {
		return nil, err
	}
	registry, err := registryFiles("pause", "testing", built["pause:3.10.2"])
	if err != nil {
		return nil, err
	}
	program := registrytest.Layer(registrytest.File("agnhost", 0o755, string(host)),
		registrytest.Symlink("agnhost-2", "agnhost"))
	for _, name := range []string{"agnhost:2.55", "agnhost:2.66.1"} {
		add(suite+name, registrytest.ReadyLayer(shell), nmeter, program, registrytest.WithFiles(certificates),
			registrytest.Layer(registry...),
			registrytest.WithFiles(map[string]string{
				"etc/passwd": passwd + "user-defined-in-image:x:1000:1000::/:/bin/sh\n",
				"etc/group": group +
					"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
			}), registrytest.Layer(registrytest.Dir("uploads", 0o755)),
			registrytest.Entrypoint("/agnhost"), registrytest.Cmd("pause"))
	}
	for _, name := range []string{"kitten", "nautilus"} {
		files, err := from.files(name+"/html", name+".jpg", "data.json")
		if err != nil {
			return nil, err
		}
		// A spec looks for the name of what the public images are made of.
		files["etc/os-release"] = "NAME=\"Alpine Linux\"\n"
		add(suite+name+":1.8", registrytest.ReadyLayer(shell), program, registrytest.WithFiles(files),
			registrytest.Entrypoint("/agnhost"), registrytest.Cmd("test-webserver"))
	}
	return built, err
}

// files are files of a directory of test/images, for the root of an image.
func (s Sources) files(dir string, names ...string) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(s.Directory, dir, name))
		if err != nil {
			return nil, err
		}
		files[name] = string(data)
	}
	return files, nil
}

// registryFiles are the files from which agnhost serves an image as a registry.
func registryFiles(name, tag string, image v1.Image) ([]registrytest.Entry, error) {
	dir := "var/registry/" + name
	files := map[string]string{}
	keep := func(kind string, data []byte) string {
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:])
		files[fmt.Sprintf("%s/%s/sha256/%s/%s/data", dir, kind, hash[:2], hash)] = string(data)
		return "sha256:" + hash
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	var typed struct{ MediaType string }
	if err := json.Unmarshal(manifest, &typed); err != nil || typed.MediaType == "" {
		return nil, fmt.Errorf("the manifest of %s does not say its type (%v)", name, err)
	}
	files[dir+"/manifests/"+tag] = keep("manifests", manifest) + "\n"
	keep("blobs", config)
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		r, err := layer.Compressed()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		keep("blobs", data)
	}
	return registrytest.Files(files), nil
}
