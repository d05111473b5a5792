package image

import (
	"context"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
)

// TestANameIsTakenAway: the image stays with its others, the last name stays, and a digest goes with the last tag of
// its repository.
func TestANameIsTakenAway(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	digest := host + "a@" + digestOf(t, f.push("a:1", files("a", "a")))
	imageID := f.pull("a:1")
	for _, name := range []string{"a:2", "b:1"} {
		if _, err := f.Tag(ctx, imageID, host+name); err != nil {
			t.Fatal(err)
		}
	}
	events := f.Subscribe(t.Context())
	want := func(what string, digests []string, tags ...string) {
		t.Helper()
		img, err := f.Get(ctx, imageID)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(img.RepoTags, tags) || !slices.Equal(img.RepoDigests, digests) {
			t.Errorf("%s: %q, %q", what, img.RepoTags, img.RepoDigests)
		}
	}
	for _, name := range []string{digest, "a@b", ""} {
		if _, err := f.Untag(ctx, name); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := f.Untag(ctx, host+"a:3"); !errdefs.IsNotFound(err) {
		t.Errorf("a name that nothing has: %v", err)
	}
	if name, err := f.Untag(ctx, host+"a:2"); err != nil || name != host+"a:2" {
		t.Errorf("%q, %v", name, err)
	}
	want("one of the repository is left", []string{digest}, host+"a:1", host+"b:1")
	if got := happened(events); !slices.Equal(got, []string{"deleted " + host + "a:2"}) {
		t.Errorf("%q", got)
	}
	if _, err := f.Untag(ctx, host+"a:1"); err != nil {
		t.Error(err)
	}
	want("none of the repository is left", nil, host+"b:1")
	if _, err := f.Untag(ctx, host+"b:1"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the last name: %v", err)
	}
	f.reopen()
	want("after a restart", nil, host+"b:1")
}
