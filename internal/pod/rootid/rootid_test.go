package rootid

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	keeper "berth/internal/keeper/client"
	"berth/internal/pod/layout"
)

// runs are the IDs of what a keeper runs.
type runs []string

func (r runs) List(context.Context) ([]keeper.Status, error) {
	out := []keeper.Status{{ID: "ended", State: keeper.StateExited}}
	for _, id := range r {
		out = append(out, keeper.Status{ID: id, State: keeper.StateRunning})
	}
	return out, nil
}

// TestMatch: a story of one state directory and two roots.
func TestMatch(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	at := func(root string) *layout.Dirs {
		return &layout.Dirs{Root: filepath.Join(dir, root), State: filepath.Join(dir, "state")}
	}
	good := func(what, root string, r runs) {
		t.Helper()
		if err := Match(t.Context(), at(root), r, log); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		own, _ := load(at(root).Root)
		if copied, _ := load(at(root).State); own.ID == "" || copied != (mark{own.ID, at(root).Root}) {
			t.Errorf("%s: the root has %v, the state directory %v", what, own, copied)
		}
	}
	refused := func(what, root string, r runs, want ...string) {
		t.Helper()
		before, _ := load(at(root).State)
		err := Match(t.Context(), at(root), r, log)
		var foreign *ForeignError
		if !errors.As(err, &foreign) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, text := range append(want, at(root).Root, at(root).State, "containers: 1, pods: 0") {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error does not say %s: %v", what, text, err)
			}
		}
		if after, _ := load(at(root).State); after != before {
			t.Errorf("%s: the state directory's ID was %v and is %v", what, before, after)
		}
	}
	record := func(path string) {
		t.Helper()
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	spoil := func(top string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, top, "id", "id.json"), []byte(`{"id":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	id := func(root string) string { m, _ := load(at(root).Root); return m.ID }

	refused("a root without anything meets the containers of a keeper of before", "two", runs{"c"}, "another root")
	record(at("one").Container("c"))
	good("the root with the record of one of them, as after an upgrade", "one", runs{"c", "lost"})
	good("the same again, without a record: its ID says enough", "one", runs{"lost"})
	first := id("one")
	refused("a root without an ID", "two", runs{"c"}, at("one").Root)
	refused("a root whose ID was never written, since it was refused", "two", runs{"c"}, at("one").Root)
	good("nothing runs", "two", nil)
	refused("the other way round", "one", runs{"d"}, at("two").Root)
	good("the first again, when nothing runs", "one", nil)
	if id("one") != first || id("two") == first {
		t.Errorf("the IDs are %s, once %s, and %s", id("one"), first, id("two"))
	}

	// Files that are damaged or gone while something runs.
	spoil("one")
	good("the root's ID is spoilt", "one", runs{"c"})
	remove("one/id")
	good("the root's ID is gone", "one", runs{"c"})
	if id("one") != first {
		t.Errorf("the ID was %s and is %s", first, id("one"))
	}
	spoil("state")
	good("the copy is spoilt", "one", runs{"c"})
	remove("state/id")
	good("the copy is gone, as if berthd was killed before it was written", "one", runs{"c"})
	spoil("state")
	spoil("one")
	good("both are spoilt", "one", runs{"c"})

	remove("one")
	refused("the root is emptied under what runs", "one", runs{"c"}, "what was there before")
	remove("state")
	good("after a reboot", "one", nil)
	if err := os.Rename(filepath.Join(dir, "one"), filepath.Join(dir, "three")); err != nil {
		t.Fatal(err)
	}
	good("the root has another path", "three", runs{"c"})
}
