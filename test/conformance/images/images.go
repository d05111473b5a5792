package images

import (
	"archive/tar"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/registrytest"
	"berth/test/conformance/debian"
)

// Hosts are the registries that the images' references name.
var Hosts = []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Images are the images by repository and tag, as in "e2e-test-images/busybox:1.29-2".
type Images map[string]v1.Image

// Push stores them all.
func (i Images) Push(r *registrytest.Registry) error {
	for name, image := range i {
		if err := r.Push(name, image); err != nil {
			return err
		}
	}
	return nil
}

// Build makes all images. Packages are kept in the directory packages.
func Build(ctx context.Context, packages string) (Images, error) {
	p, err := debian.Open(packages)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	// Debian's busybox with shared libraries, not the static one: its shell runs applets as programs, so that a masked
	// /bin/ls is masked for the shell too.
	if err := p.Add(ctx, "busybox", "procps", "util-linux", "nginx"); err != nil {
		return nil, err
	}
	shell, err := userland(ctx, p, []string{"bin/busybox", "usr/bin/pgrep", "usr/bin/ipcs"}, nil)
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
	add("e2e-test-images/busybox:1.29-2", busybox()...)
	add("e2e-test-images/nginx:1.14-2", registrytest.ReadyLayer(shell), registrytest.ReadyLayer(nginx),
		siteLayer(80), nginxCommand)
	add("e2e-test-images/httpd:2.4.39-4", busybox(
		registrytest.WithFiles(map[string]string{"var/www/index.html": "httpd\n"}),
		registrytest.Cmd("sh", "-c", "echo httpd starts; exec httpd -f -p 80 -h /var/www"))...)
	add("e2e-test-images/nonewprivs:1.3", registrytest.ReadyLayer(shell), privileged,
		registrytest.Entrypoint("/nonewprivs"))
	for _, name := range []string{"pause:3.9", "pause:1"} { // the second is what containerd is told to make pods of
		add(name, busybox(registrytest.Entrypoint("sleep", "infinity"), registrytest.Cmd())...)
	}

	const tools = "k8s-staging-cri-tools/"
	add(tools+"hostnet-nginx-"+runtime.GOARCH+":latest", registrytest.ReadyLayer(shell), registrytest.ReadyLayer(nginx),
		siteLayer(12003), nginxCommand)
	for _, name := range []string{"test-image-latest:latest", "test-image-tag:test", "test-image-tag:all",
		"test-image-1:latest", "test-image-2:latest", "test-image-3:latest", "test-image-tags:1"} {
		add(tools+name, busybox()...)
	}
	for name, user := range map[string]string{
		"uid": "1002", "username": "www-data", "uid-group": "1003:users", "username-group": "www-data:100",
	} {
		add(tools+"test-image-user-"+name+":latest", busybox(registrytest.User(user))...)
	}
	add(tools+"test-image-predefined-group:latest", busybox(
		registrytest.WithFiles(map[string]string{
			"etc/passwd": passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n",
			"etc/group":  group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n",
		}), registrytest.User("1000"))...)
	if err != nil {
		return nil, err
	}
	for _, tag := range []string{"2", "3"} { // one image under three tags
		built[tools+"test-image-tags:"+tag] = built[tools+"test-image-tags:1"]
	}
	return built, nil
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nnobody:x:65534:65534::/:/bin/false\n"
	group  = "root:x:0:\nwww-data:x:33:\nusers:x:100:\nnogroup:x:65534:\n"
)

// userland is a layer with programs, of which busybox is one, their libraries, names that are links to programs, and
// busybox's applets as hard links where nothing else has their name.
func userland(ctx context.Context, p *debian.Packages, names []string, links map[string]string) (v1.Layer, error) {
	programs, err := p.Programs(ctx, names...)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		programs = append(programs, registrytest.Symlink(name, links[name]))
	}
	own := map[string]bool{}
	for _, e := range programs {
		own[e.Name] = true
	}
	list, err := applets(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, applet := range list {
		// The public image of busybox has all of them in /bin.
		for _, name := range []string{applet, "bin/" + path.Base(applet)} {
			if !own[name] {
				own[name] = true
				link := registrytest.Hardlink(name, "bin/busybox")
				link.Mode = 0o755 // some runtimes give the file the mode of its last name
				programs = append(programs, link)
			}
		}
	}
	files := append(programs, registrytest.File("etc/passwd", 0o644, passwd), registrytest.File("etc/group", 0o644, group))
	dirs := []registrytest.Entry{registrytest.Dir("tmp", 0o1777)}
	for _, dir := range []string{"dev", "proc", "sys", "root", "var/run", "var/www", "home/default-user"} {
		dirs = append(dirs, registrytest.Dir(dir, 0o755))
	}
	return layer(append(dirs, files...))
}

// applets are the paths of busybox's applets. The program that lists them is the one that goes into the image,
// run on this machine: it needs no more than the C library that every Debian has.
func applets(ctx context.Context, p *debian.Packages) ([]string, error) {
	data, err := p.Read("bin/busybox")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "berth-busybox-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "busybox")
	if err := os.WriteFile(program, data, 0o755); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, program, "--list-full").Output()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, applet := range strings.Fields(string(out)) {
		if strings.Contains(applet, "/") && applet != "bin/busybox" {
			paths = append(paths, applet)
		}
	}
	return paths, nil
}

// webServer is a layer with nginx and its libraries, for above a userland.
func webServer(ctx context.Context, p *debian.Packages) (v1.Layer, error) {
	programs, err := p.Programs(ctx, "usr/sbin/nginx")
	if err != nil {
		return nil, err
	}
	return layer(append([]registrytest.Entry{
		registrytest.Dir("var/lib/nginx", 0o755), registrytest.Dir("var/log/nginx", 0o755),
		registrytest.File("var/www/index.html", 0o644, "nginx\n"),
	}, programs...))
}

var nginxCommand = registrytest.Cmd("nginx", "-e", "stderr", "-c", "/etc/nginx.conf")

// siteLayer configures nginx for a port on all addresses.
func siteLayer(port int) registrytest.ImageOption {
	return registrytest.WithFiles(map[string]string{"etc/nginx.conf": fmt.Sprintf(`daemon off;
pid /var/run/nginx.pid;
error_log stderr;
worker_processes 1;
events {}
http {
  access_log off;
  server { listen %d; root /var/www; }
}
`, port)})
}

// effectiveUser prints the user that it runs as in effect.
const effectiveUser = `#include <stdio.h>
#include <unistd.h>
int main(void) { return printf("Effective uid: %d\n", (int)geteuid()) < 0; }
`

// noNewPrivs is a layer with that program, setuid root: it tells whether a program may gain privileges.
func noNewPrivs(ctx context.Context) (registrytest.ImageOption, error) {
	program, err := compile(ctx, effectiveUser)
	if err != nil {
		return nil, err
	}
	return registrytest.Layer(registrytest.File("nonewprivs", 0o4755, program)), nil
}

// compile is a static program, made of a source in C.
func compile(ctx context.Context, code string) (string, error) {
	dir, err := os.MkdirTemp("", "berth-compile-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	source, program := filepath.Join(dir, "program.c"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-o", program, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile a program for an image: %w: %s", err, out)
	}
	data, err := os.ReadFile(program)
	return string(data), err
}

// layer packs entries, after the directories that they need.
func layer(entries []registrytest.Entry) (v1.Layer, error) {
	made := map[string]bool{".": true}
	var dirs []string
	var rest []registrytest.Entry
	modes := map[string]int64{}
	for _, e := range entries {
		name := path.Clean(e.Name)
		if e.Typeflag == tar.TypeDir {
			modes[name] = e.Mode
		} else {
			rest = append(rest, e)
			name = path.Dir(name)
		}
		for ; !made[name]; name = path.Dir(name) {
			made[name] = true
			dirs = append(dirs, name)
		}
	}
	sort.Strings(dirs) // parents come before children
	var all []registrytest.Entry
	for _, dir := range dirs {
		mode, ok := modes[dir]
		if !ok {
			mode = 0o755
		}
		all = append(all, registrytest.Dir(dir, mode))
	}
	data, err := registrytest.Tar(slices.Concat(all, rest)...)
	if err != nil {
		return nil, err
	}
	return registrytest.NewLayer(data, registrytest.Gzip, false)
}
