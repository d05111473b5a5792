package oci

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/keeper/record"
)

// TestWhatARuntimeHasOfAContainerIsNotTakenForNothing: a root that cannot be read says nothing about a container in it,
// whose removal would succeed and leave it. Seen to fail where such an error was an empty list.
func TestWhatARuntimeHasOfAContainerIsNotTakenForNothing(t *testing.T) {
	unreadable := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(unreadable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, name := range []string{"a", "a_sandbox:p.state", "ab_sandbox:p.state", "runsc-a.sock"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plain, inSandbox := record.Container{}, record.Container{Sandbox: "p"}
	for _, c := range []struct {
		of     record.Container
		root   string
		want   []string
		failed bool
	}{
		{of: plain, root: root, want: []string{"a"}},
		{of: plain, root: unreadable, want: []string{"a"}},
		{of: plain, root: filepath.Join(root, "none")},
		{of: inSandbox, root: root, want: []string{"a", "a_sandbox:p.state", "runsc-a.sock"}},
		{of: inSandbox, root: unreadable, failed: true},
		{of: inSandbox, root: filepath.Join(root, "none")},
		{of: record.Container{Reaper: true}, root: unreadable, failed: true},
	} {
		c.of.RuntimeRoot = c.root
		got, err := New("", nil, &c.of).states("a")
		for i := range got {
			got[i] = filepath.Base(got[i])
		}
		if (err != nil) != c.failed || !slices.Equal(got, c.want) {
			t.Errorf("sandbox %q of %s: %v, %v", c.of.Sandbox, c.root, got, err)
		}
	}
}

// TestTheLockOfADeletedSandboxIsRemoved: a call for a container in it makes the file anew.
func TestTheLockOfADeletedSandboxIsRemoved(t *testing.T) {
	for _, c := range []struct{ before, after []string }{
		{before: nil, after: nil},
		{before: []string{"p_sandbox:p.lock"}, after: nil},
		{before: []string{"p_sandbox:p.lock", "p_sandbox:p.state"}, after: []string{"p_sandbox:p.lock", "p_sandbox:p.state"}},
		{before: []string{"p_sandbox:p.state"}, after: []string{"p_sandbox:p.state"}},
		{before: []string{"q_sandbox:q.lock"}, after: []string{"q_sandbox:q.lock"}},
	} {
		root := t.TempDir()
		for _, name := range c.before {
			if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := New("", nil, &record.Container{Sandbox: "p", RuntimeRoot: root}).sweepLock("p"); err != nil {
			t.Error(err)
		}
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		var after []string
		for _, e := range entries {
			after = append(after, e.Name())
		}
		if !slices.Equal(after, c.after) {
			t.Errorf("of %v is left %v", c.before, after)
		}
	}
}
