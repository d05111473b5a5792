package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestNodeWithFewDescriptors: berthd and its keeper are started from a shell that may open 256 files. They pull, run
// what there is room for, refuse the rest with the limit's name, and lose nothing of what runs when they are killed.
//
// Seen to fail where the children that unpack images raised the limit, which only CAP_SYS_RESOURCE may:
// berthd did not start.
func TestNodeWithFewDescriptors(t *testing.T) {
	binaries, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	limited := t.TempDir()
	for _, name := range []string{"berth", "berth-keeper", "berth-unpack"} {
		if err := os.Symlink(filepath.Join(binaries, name), filepath.Join(limited, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nulimit -n 256\nexec %s \"$@\"\n", filepath.Join(binaries, "berthd"))
	if err := os.WriteFile(filepath.Join(limited, "berthd"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Binaries: limited})
	nodetest.Pull(t, n, node.Busybox)
	p := nodetest.RunPod(t, n)
	var all []*witness
	for {
		c, err := p.TryCreate(nodetest.Sh(counter))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.TryStart(); err != nil {
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "RLIMIT_NOFILE") {
				t.Errorf("start of container %d: %v", len(all), err)
			}
			break
		}
		all = append(all, witnessOf(t, c))
		if len(all) > 100 {
			t.Fatal("as many run as if there were no limit")
		}
	}
	t.Logf("%d containers run", len(all))
	if len(all) < 15 {
		t.Errorf("only %d containers run", len(all))
	}
	check := func() {
		t.Helper()
		for _, w := range all {
			w.check(t)
		}
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	check()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	check()
	all[0].Stop(0)
	all[0].Remove()
	p.Run(nodetest.Sh("true")).WaitExit()
}
