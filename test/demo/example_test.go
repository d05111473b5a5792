package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

// The README's first pod and the examples of `berth --help` are typed as they stand there, on a private node.
// The registry on loopback has an image of the same name as the public one, with Debian's busybox in it,
// so the test needs no network.
func TestTheExamplesOfTheDocumentsWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a container runtime needs root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	d := exampleNode(ctx, t)
	hello := filepath.Join("..", "..", "examples", "hello.yaml")

	d.must(ctx, t, nil, "run", "-d", hello)
	d.must(ctx, t, nil, "run", "-d", "--name", "hello2", hello)
	if out := d.must(ctx, t, nil, "ps"); strings.Count(out, "running") != 2 {
		t.Errorf("berth ps shows other than two running containers:\n%s", out)
	}
	out := d.must(ctx, t, nil, "exec", "hello/web", "wget", "-qO-", "http://127.0.0.1/")
	if !strings.HasPrefix(out, "Hello from pod hello at ") {
		t.Errorf("the web server in the pod answers %q", out)
	}
	if out := d.must(ctx, t, strings.NewReader("hostname; exit\n"), "exec", "-i", "hello/web", "sh"); out != "hello\n" {
		t.Errorf("the shell's output is %q, want the pod's name", out)
	}

	archive, err := exec.CommandContext(ctx, "tar", "c", "-C", "testdata", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	d.must(ctx, t, bytes.NewReader(archive), "exec", "-i", "hello/web", "tar", "x", "-C", "/srv")
	if out := d.must(ctx, t, nil, "exec", "hello/web", "ls", "/srv"); !strings.Contains(out, "kubectl.yaml") {
		t.Errorf("the files that were piped into the pod are not there: %s", out)
	}

	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	var got string
	err = d.lines(ctx, func(line string) bool {
		if !strings.HasPrefix(line, "Forwarding from") {
			return false
		}
		got, err = get(ctx, fmt.Sprintf("http://127.0.0.1:%d/", port))
		return true
	}, "port-forward", "--bind", "127.0.0.1", "hello", fmt.Sprintf("%d:80", port))
	if err != nil || !strings.HasPrefix(got, "Hello from pod hello at ") {
		t.Errorf("the forwarded port answers %q, %v", got, err)
	}
	if out, err := d.command(ctx, "logs", "hello/web").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "url:/") {
		t.Errorf("the log lacks the requests: %v\n%s", err, out)
	}

	cluster, err := os.Open(filepath.Join("testdata", "kubectl.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	d.must(ctx, t, cluster, "run", "--ignore-unsupported", "-d", "-")

	for _, args := range [][]string{
		{"device-plugin", "--default-config"}, {"timeline", "hello"}, {"inspect", "hello"}, {"stats", "--no-stream"},
		{"version"}, {"rm", "-f", "hello", "hello2", "web"},
	} {
		d.must(ctx, t, nil, args...)
	}
	if out := d.must(ctx, t, nil, "ps", "-a"); strings.Contains(out, "web") {
		t.Errorf("containers are left:\n%s", out)
	}
}

// exampleNode is a private node that finds docker.io on loopback.
func exampleNode(ctx context.Context, t *testing.T) *demo {
	t.Helper()
	binaries, err := node.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	registry, err := registrytest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { registry.Close() })
	image, err := registrytest.Image(registrytest.WithBusybox(),
		registrytest.WithFiles(map[string]string{"srv/.keep": ""}))
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.Push("library/busybox:1.37", image); err != nil {
		t.Fatal(err)
	}
	n, err := node.Start(ctx, node.Options{Registry: registry, Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := registry.HostsDir(n.HostsDir, "docker.io"); err != nil {
		t.Fatal(err)
	}
	return &demo{binaries: binaries, node: n, dataDir: filepath.Join(n.Dir, "cli"), began: time.Now()}
}

// must runs a command of berth with an input, or none, and returns its standard output. A command that fails ends
// the test.
func (d *demo) must(ctx context.Context, t *testing.T, in io.Reader, args ...string) string {
	t.Helper()
	var complaints bytes.Buffer
	cmd := d.command(ctx, args...)
	cmd.Stdin, cmd.Stderr = in, &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("berth %s: %v\n%s%s", strings.Join(args, " "), err, out, complaints.String())
	}
	return string(out)
}
