package hostpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath/mutetest"
)

// TestAFileSystemThatDoesNotAnswerKeepsNoOtherFromBeingLookedAt, however many of its paths are asked for at once. No
// more children than a few go to it afterwards, also along a link from another file system. Seen to fail with one count
// of children for the node: the path on the other file system was refused, as if that did not answer.
func TestAFileSystemThatDoesNotAnswerKeepsNoOtherFromBeingLookedAt(t *testing.T) {
	f := mutetest.Mount(t, t.TempDir())
	healthy := t.TempDir()
	if err := os.Symlink(f.Dir, filepath.Join(healthy, "link")); err != nil {
		t.Fatal(err)
	}
	f.Mute()
	var looks sync.WaitGroup
	for i := range maxStuck + 2 {
		looks.Go(func() {
			path := filepath.Join(healthy, "link", fmt.Sprint(i))
			if _, err := Resolve(path); !errors.Is(err, errdefs.ErrUnavailable) {
				t.Errorf("%s: %v", path, err)
			}
		})
	}
	looks.Wait()
	if r, err := askResolved(healthy); err != nil || !r.Dir {
		t.Errorf("a path on another file system: %+v, %v", r, err)
	}
	var took time.Duration
	for i := range 3 { // the machine may be slow at one of them
		began := time.Now()
		path := filepath.Join(healthy, "link", fmt.Sprint("late", i))
		if _, err := Resolve(path); !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), path) {
			t.Errorf("one path more: %v", err)
		}
		if took = time.Since(began); took <= patience/2 {
			break
		}
	}
	if took > patience/2 {
		t.Errorf("one path more is waited for another %v", took)
	}
	f.End()
	nobodyWaits(t)
	if _, err := Create(filepath.Join(healthy, "new")); err != nil {
		t.Errorf("once nobody waits: %v", err)
	}
}

// TestTooManyFileSystemsThatDoNotAnswer refuse a path that is not theirs, and the error does not say that it was.
func TestTooManyFileSystemsThatDoNotAnswer(t *testing.T) {
	var w waits
	path := t.TempDir()
	var r Resolved
	for i := range maxStuck {
		if err := w.ask(actResolve, path, &r, nil); err != nil {
			t.Fatalf("with %d that wait: %v", i, err)
		}
		w.give(fmt.Sprint("/mute/", i), fmt.Sprint("0:", 1000+i/maxOfOne), 1)
	}
	err := w.ask(actResolve, path, &r, nil)
	if !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), "32 other paths do not answer") ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("with %d that wait: %v", maxStuck, err)
	}
	w.give("/mute/0", "0:1000", -1)
	if err := w.ask(actResolve, path, &r, nil); err != nil {
		t.Errorf("once one has ended: %v", err)
	}
}
