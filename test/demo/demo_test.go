package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestMain removes the programs that the first test builds for all of them.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := node.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The demo is the promise that the README makes; a change that breaks it fails here.
func TestTheDemoWorks(t *testing.T) {
	nodetest.NodeMounts(t)
	if os.Geteuid() != 0 {
		t.Skip("a container runtime needs root")
	}
	building := nodetest.Building(t)
	binaries, err := node.Binaries(building)
	if err != nil {
		t.Fatal(err)
	}
	web := filepath.Join(t.TempDir(), "web")
	build := exec.CommandContext(building, "go", "build", "-buildvcs=false", "-o", web, "./web")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the web server: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	defer cancel()
	d := &demo{binaries: binaries, web: web, manifest: "hello.yaml", began: time.Now()}
	if err := d.run(ctx); err != nil {
		t.Fatal(err)
	}
}
