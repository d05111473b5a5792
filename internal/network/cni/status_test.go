package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// waitFor waits until a file is there.
func waitFor(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not there after a minute", path)
		}
	}
}

// plugin writes a plugin of a shell script to a directory.
func plugin(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// The answer of the plugins is kept for all callers, so one that goes away while they work does not decide it, and
// neither does a caller that had no time when it came. Seen to fail with the plugins under the caller's context.
func TestACallerThatGoesAwayLeavesTheStatusAsItIs(t *testing.T) {
	dir, confs := t.TempDir(), t.TempDir()
	plugin(t, dir, "patient", `[ $CNI_COMMAND = STATUS ] || exit 0
touch `+dir+`/began
while [ ! -e `+dir+`/goon ]; do sleep 0.01; done`)
	conf := `{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "patient"}]}`
	if err := os.WriteFile(filepath.Join(confs, "10-n.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{ConfDir: confs, BinDirs: []string{dir}, CacheDir: t.TempDir(), StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s := n.Selected()
	if s.Network == nil {
		t.Fatal(s.Reason())
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- n.Status(ctx, s) }()
	waitFor(t, filepath.Join(dir, "began"))
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that went away: %v", err)
	}
	if err := n.Status(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller without time: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "goon"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Status(t.Context(), s); err != nil {
		t.Errorf("the next caller: %v", err)
	}
}
