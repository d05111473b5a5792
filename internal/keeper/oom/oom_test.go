package oom

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestOOMKillsOfACgroupThatIsGone plays systemd, which removes a scope before the keeper has read its count.
func TestOOMKillsOfACgroupThatIsGone(t *testing.T) {
	slice := t.TempDir()
	paths := func(name string) map[string]string { return map[string]string{"": filepath.Join(slice, name)} }
	count := func(name string, kills int) {
		t.Helper()
		dir := filepath.Join(slice, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("low 0\nhigh 0\nmax 9\noom 5\noom_kill %d\noom_group_kill 0\n", kills)
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(slice, name)); err != nil {
			t.Fatal(err)
		}
	}
	var l Ledger
	want := func(name string, kills int) {
		t.Helper()
		if got := l.End(paths(name)); got != kills {
			t.Errorf("%s: %d processes killed, want %d", name, got, kills)
		}
	}

	count(".", 2) // of containers that this keeper never knew
	for _, name := range []string{"a", "b", "c", "d"} {
		count(name, 0)
		l.Begin(paths(name))
	}
	count("a", 1)
	count(".", 3)
	l.Begin(paths("a")) // again, as a watch does
	remove("b")
	want("b", 0)
	count(".", 5)
	remove("c")
	want("c", 2)
	want("a", 1) // still there
	remove("a")
	remove("d")
	want("d", 0)

	// The slice is gone and made again: its count begins at nothing.
	count(".", 0)
	count("e", 0)
	l.Begin(paths("e"))
	count(".", 1)
	remove("e")
	want("e", 1)

	// A keeper that comes to running containers.
	count(".", 7)
	count("f", 3)
	count("g", 0)
	l.Begin(paths("f"))
	l.Begin(paths("g"))
	count(".", 8)
	remove("g")
	want("g", 1)
	want("f", 3)
	if len(l.parents) != 0 {
		t.Errorf("what is remembered at the end: %v", l.parents)
	}
}
