package inroot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// chain makes links in a directory of a root, each of which leads from the root through the whole directory to the next
// one, and returns the path of the first.
func chain(t *testing.T, root string, depth, links int) string {
	t.Helper()
	at := strings.Repeat("/d", depth)
	err := os.MkdirAll(filepath.Join(root, at), 0o700)
	for i := range links {
		err = errors.Join(err, os.Symlink(fmt.Sprintf("%s/k%d", at, i+1), filepath.Join(root, at, fmt.Sprintf("k%d", i))))
	}
	if err != nil {
		t.Fatal(err)
	}
	return at + "/k0"
}

// TestLinksCannotMakeAPathLong, nor many paths together. Seen to fail with securejoin alone, which passes twenty
// million directories for this one path, and four hundred million at the depth that a path may have.
func TestLinksCannotMakeAPathLong(t *testing.T) {
	root := t.TempDir()
	if at, err := NewResolver(t.Context()).Place(root, chain(t, root, 400, 250)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a path of %d bytes, %v", len(at), err)
	}
	root = t.TempDir()
	first := chain(t, root, 200, 50)
	r := NewResolver(t.Context())
	if _, err := r.Place(root, first); err != nil {
		t.Errorf("one path: %v", err)
	}
	var err error
	for range 10 {
		if _, err = r.Place(root, first); err != nil {
			break
		}
	}
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("many paths: %v", err)
	}
}

// TestAPathIsResolvedUntilTheContextEnds, and nobody has to wait for the rest.
func TestAPathIsResolvedUntilTheContextEnds(t *testing.T) {
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := NewResolver(ctx).Place(t.TempDir(), "/a"); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// TestWhereAPathIsInARoot: links lead nowhere but into the root, also where they or what they lead to is missing.
func TestWhereAPathIsInARoot(t *testing.T) {
	root := t.TempDir()
	err := os.MkdirAll(filepath.Join(root, "run/x"), 0o700)
	for name, target := range map[string]string{
		"var": "run", "up": "../../run", "dangling": "/srv/data", "loop": "loop",
	} {
		err = errors.Join(err, os.Symlink(target, filepath.Join(root, name)))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		at      string
		missing bool
	}{
		"/":               {at: ""},
		"/run/x/":         {at: "/run/x"},
		"var/x":           {at: "/run/x"},
		"/up/x":           {at: "/run/x"},
		"/../../run/../a": {at: "/a", missing: true},
		"/var/missing/a":  {at: "/run/missing/a", missing: true},
		"/dangling/a":     {at: "/srv/data/a", missing: true},
		"/file/a":         {at: "/file/a", missing: true},
	} {
		r := NewResolver(t.Context())
		if at, err := r.Place(root, name); err != nil || at != root+want.at {
			t.Errorf("%s: %q, %v", name, at, err)
		}
		at, err := r.Path(root, name)
		if errors.Is(err, fs.ErrNotExist) != want.missing || !want.missing && at != root+want.at {
			t.Errorf("%s: %q, %v", name, at, err)
		}
	}
	if at, err := NewResolver(t.Context()).Place(root, "/loop"); err == nil {
		t.Errorf("a link to itself is at %q", at)
	}
}
