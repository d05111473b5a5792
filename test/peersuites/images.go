package main

import (
	"archive/tar"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/registrytest"
	"berth/test/conformance/debian"
	"berth/test/node"
)

// imageHosts are the registries that the suites' references name.
var imageHosts = []string{"registry.k8s.io", "ghcr.io", "quay.io", "docker.io", "registry.test"}

// containerdImages is the list by which containerd's suite is told its images. What it would pull by the digest of an
// upstream build is by tag here.
const containerdImages = `BusyBoxByDigest = "ghcr.io/containerd/busybox:1.36"
`

// pushImages builds the images of the suites, of Debian's packages, which are kept in the directory packages, and
// pushes them.
func pushImages(ctx context.Context, r *registrytest.Registry, packages string) error {
	p, err := debian.Open(packages)
	if err != nil {
		return err
	}
	defer p.Close()
	type maker func(context.Context, *debian.Packages) (map[string]v1.Image, error)
	for _, made := range []maker{containerdsImages, criosImages} {
		images, err := made(ctx, p)
		if err != nil {
			return err
		}
		for name, image := range images {
			if err := r.Push(name, image); err != nil {
				return fmt.Errorf("push %s: %w", name, err)
			}
		}
	}
	for tag, files := range criosArtifacts {
		artifact := registrytest.Artifact{Type: "application/vnd.example.artifact"}
		for _, title := range slices.Sorted(maps.Keys(files)) {
			artifact.Files = append(artifact.Files, registrytest.TitledFile(title, files[title]))
		}
		if _, err := r.PushArtifact("crio/artifact", tag, artifact); err != nil {
			return fmt.Errorf("push the artifact %s: %w", tag, err)
		}
	}
	return nil
}

// criosArtifacts are the files of those that CRI-O's suite pulls, by tag and title.
var criosArtifacts = map[string]map[string]string{
	"singlefile":    {"artifact.txt": "hello artifact"},
	"multiplefiles": {"artifact.txt": "hello artifact", "artifact.sh": "#!/bin/sh\necho hello artifact"},
	"exec":          {"artifact.sh": "#!/bin/sh\necho hello artifact"},
	"subpath":       {"1": "1", "subpath/2": "2", "subpath/3": "3"},
}

// containerdsImages are what containerd's suite pulls, with what its tests look for in them.
func containerdsImages(ctx context.Context, p *debian.Packages) (map[string]v1.Image, error) {
	if err := p.Add(ctx, "stress", "nginx"); err != nil {
		return nil, err
	}
	shell, err := busybox()
	if err != nil {
		return nil, err
	}
	stress, err := p.Programs(ctx, "usr/bin/stress")
	if err != nil {
		return nil, err
	}
	nginx, err := p.Programs(ctx, "usr/sbin/nginx")
	if err != nil {
		return nil, err
	}
	pause, err := node.PauseProgram()
	if err != nil {
		return nil, err
	}
	env := registrytest.Env("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	wait := registrytest.Cmd("sleep", "infinity")
	return build(map[string][]registrytest.ImageOption{
		"containerd/busybox:1.36":  {registrytest.Layer(shell...), env, registrytest.Cmd("sh")},
		"containerd/alpine:3.14.0": {registrytest.Layer(shell...), env, registrytest.Cmd("/bin/sh")},
		"pause:3.10.2": {registrytest.Layer(registrytest.File("pause", 0o755, pause)), env,
			registrytest.Entrypoint("/pause")},
		"e2e-test-images/resource-consumer:1.10": {registrytest.Layer(shell...), registrytest.Layer(stress...), env, wait},
		"containerd/nginx:1.27.0": {registrytest.Layer(shell...), registrytest.Layer(nginx...), env,
			registrytest.WithFiles(map[string]string{"etc/nginx.conf": nginxConfig}),
			registrytest.Layer(registrytest.Dir("var/lib/nginx", 0o755), registrytest.Dir("var/log/nginx", 0o755)),
			registrytest.Cmd("nginx", "-e", "stderr", "-c", "/etc/nginx.conf")},
		"containerd/volume-copy-up:2.2": {registrytest.Layer(shell...), registrytest.Layer(
			registrytest.Dir("test_dir", 0o755), registrytest.File("test_dir/test_file", 0o644, "test_content\n"),
			registrytest.Dir("C:", 0o755), registrytest.Dir("C:/weird_test_dir", 0o755),
			registrytest.File("C:/weird_test_dir/weird_test_file", 0o644, "test_content\n"),
			registrytest.Dir(":colon_prefixed", 0o755),
			registrytest.File(":colon_prefixed/colon_prefixed_file", 0o644, "test_content\n")),
			env, registrytest.Volumes("/test_dir", "C:/weird_test_dir", "/:colon_prefixed")},
		"containerd/volume-ownership:2.1": {registrytest.Layer(shell...),
			registrytest.Layer(registrytest.Dir("test_dir", 0o755).Owned(65534, 65534)), env, registrytest.Volumes("/test_dir")},
	})
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n" +
		"www-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	group = "root:x:0:root\ndaemon:x:1:\nwheel:x:10:root\nwww-data:x:33:\nnogroup:x:65534:\n"

	nginxConfig = "daemon off;\npid /var/run/nginx.pid;\nerror_log stderr notice;\nevents {}\n" +
		"http { access_log /dev/stdout; server { listen 80; root /var/www; } }\n"
)

// busybox is Debian's, with the applets as symbolic links, and users and groups as those of Alpine.
func busybox() ([]registrytest.Entry, error) {
	entries, err := registrytest.Busybox()
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		switch {
		case e.Typeflag == tar.TypeLink:
			entries[i] = registrytest.Symlink(e.Name, "/bin/busybox")
		case strings.TrimPrefix(e.Name, "/") == "etc/passwd":
			entries[i] = registrytest.File(e.Name, 0o644, passwd)
		case strings.TrimPrefix(e.Name, "/") == "etc/group":
			entries[i] = registrytest.File(e.Name, 0o644, group)
		}
	}
	return append(entries, registrytest.File("etc/os-release", 0o644, "ID=test\n")), nil
}

// build makes images. A label gives each an ID of its own.
func build(options map[string][]registrytest.ImageOption) (map[string]v1.Image, error) {
	images := map[string]v1.Image{}
	for name, opts := range options {
		image, err := registrytest.Image(append(opts, registrytest.Label("berth.test.image", path.Base(name)))...)
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
		images[name] = image
	}
	return images, nil
}

// criosImages are what CRI-O's suite pulls: its own image has a shell, redis and the programs by which its stories look
// at a container.
func criosImages(ctx context.Context, p *debian.Packages) (map[string]v1.Image, error) {
	err := p.Add(ctx, "bash", "coreutils", "iproute2", "iputils-ping", "procps", "redis-server", "redis-tools",
		"util-linux")
	if err != nil {
		return nil, err
	}
	shell, err := busybox()
	if err != nil {
		return nil, err
	}
	programs, err := p.Programs(ctx, "bin/bash", "bin/ls", "bin/sleep", "usr/bin/stat", "bin/ip", "bin/ping",
		"usr/bin/pgrep", "bin/ps", "usr/bin/redis-server", "usr/bin/redis-cli", "usr/bin/setpriv")
	if err != nil {
		return nil, err
	}
	pause, err := node.PauseProgram()
	if err != nil {
		return nil, err
	}
	env := registrytest.Env("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "REDIS_VERSION=6.0.18")
	own := []registrytest.Entry{
		registrytest.Dir("etc", 0o755).Owned(5000, 5000),
		registrytest.File("etc/passwd", 0o644, passwd+
			"test:x:5000:5000::/home/test:/bin/bash\nredis:x:998:998::/home/redis:/bin/sh\n"),
		registrytest.File("etc/group", 0o644, group+"test:x:5000:\nredis:x:998:\n"),
		registrytest.Symlink("bin/sh", "bash"),
		registrytest.Dir("data", 0o755).Owned(998, 998),
		registrytest.Dir("home/test", 0o755).Owned(5000, 5000),
		registrytest.Dir("usr/local", 0o755), registrytest.Dir("usr/local/bin", 0o755),
		registrytest.File("usr/local/bin/docker-entrypoint.sh", 0o755, entrypoint),
	}
	pauseImage := []registrytest.ImageOption{registrytest.Layer(registrytest.File("pause", 0o755, pause)), env,
		registrytest.Entrypoint("/pause")}
	return build(map[string][]registrytest.ImageOption{
		"pause:1":           pauseImage, // what containerd is told to make pods of
		"pause:3.10.1":      pauseImage,
		"crio/pause:latest": pauseImage,
		"crio/alpine:3.9":   {registrytest.Layer(shell...), env, registrytest.Cmd("/bin/sh")},
		"crio/fedora-crio-ci:latest": {registrytest.Layer(shell...), registrytest.Layer(programs...),
			registrytest.Layer(own...), env,
			registrytest.Volumes("/data", "/imagevolume"), registrytest.WorkingDir("/data"), registrytest.ExposedPorts("6379"),
			registrytest.Entrypoint("docker-entrypoint.sh"), registrytest.Cmd("redis-server")},
	})
}

// entrypoint runs redis as its own user, and anything else as it is.
const entrypoint = `#!/bin/sh
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
	chown -R redis .
	exec setpriv --reuid=redis --regid=redis --clear-groups -- "$@"
fi
exec "$@"
`
