package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// A start that a kill of berthd and the keeper cut off before anything ran leaves a container that is created,
// and can be started. It left one that had exited with 255, for a reason that said that it had run.
func TestStartThatIsCutOffCanBeMadeAgain(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	c := p.Create(nodetest.Sh("echo ran"))
	keeper, ok := n.KeeperPID()
	if !ok {
		t.Fatal("no keeper answers")
	}
	if err := node.Halt(keeper, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	killed := false
	defer func() { // where the test fails before it kills the keeper, the node could not be cleared
		if !killed {
			_ = syscall.Kill(keeper, syscall.SIGCONT)
		}
	}()
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
		failed <- err
	}()
	nodetest.Eventually(t, 10*time.Second, "berthd has begun the start", func() error {
		return recordSays(n.Root, c.ID, `"starting"`)
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	killed = true
	if err := <-failed; err == nil {
		t.Error("the start that was cut off succeeded")
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_CREATED {
		t.Fatalf("it is %v: %d (%s: %s)", s.State, s.ExitCode, s.Reason, s.Message)
	}
	c.Start()
	if s := c.WaitExit(); s.ExitCode != 0 || c.Stdout() != "ran\n" {
		t.Errorf("it ended with %d, its log: %q", s.ExitCode, c.Stdout())
	}
	nothingLeft(t, n)
}

// recordSays is an error unless a record of a container has a text in it.
func recordSays(dir, id, text string) error {
	err := os.ErrNotExist
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, werr error) error {
		if werr == nil && d.Type().IsRegular() && strings.Contains(path, id) {
			if b, rerr := os.ReadFile(path); rerr == nil && strings.Contains(string(b), text) {
				err = nil
			}
		}
		return nil
	})
	return err
}

// A call of an OCI runtime that a killed keeper has left ends with the start, which is made again. The old call went
// on, and the runtime refused the new one: "container with given ID already exists". Seen to fail where only calls for
// sandboxes ended.
func TestTheCallOfAStartThatIsCutOffEnds(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("runc is not installed")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "slow")
	// The first call makes the container while the second one is about to.
	script := fmt.Sprintf(`#!/bin/sh
for arg; do
	if [ "$arg" = create ]; then
		if [ -e %[1]s/first ]; then sleep 3; else touch %[1]s/first; sleep 1.5; fi
	fi
done
%[2]s "$@"
`, dir, runc)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{
		Tables: fmt.Sprintf("[runtimes.slow]\ntype = \"oci\"\npath = %q\nroot = %q\n", path, filepath.Join(dir, "root")),
	})
	c := nodetest.RunPodHandler(t, n, "slow").Create(nodetest.Sh("echo ran"))
	started := make(chan error, 1)
	go func() { started <- c.TryStart() }()
	nodetest.Eventually(t, 10*time.Second, "the runtime is called", func() error {
		_, err := os.Stat(filepath.Join(dir, "first"))
		return err
	})
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if s := c.WaitExit(); s.ExitCode != 0 || c.Stdout() != "ran\n" {
		t.Errorf("it ended with %d, its log: %q", s.ExitCode, c.Stdout())
	}
	nothingLeft(t, n)
}
