package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image"
	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// artifact pulls an artifact that is made for it.
func (n *node) artifact(ref string) *model.Image {
	n.t.Helper()
	repo, tag, _ := strings.Cut(strings.TrimPrefix(ref, "registry.test/"), ":")
	_, err := n.reg.PushArtifact(repo, tag, rt.Artifact{Type: "a/b", ConfigType: "a/config", Config: []byte(`{"c":1}`),
		Annotations: map[string]string{"note": "kept"}, Files: []rt.ArtifactFile{
			rt.TitledFile("d/one", "one"), rt.TitledFile("empty", ""),
			{Title: "two", MediaType: ocispec.MediaTypeImageLayerGzip, Body: bytes.Repeat([]byte("two"), 100_000)}}})
	if err != nil {
		n.t.Fatal(err)
	}
	img, err := n.Pull(context.Background(), image.PullRequest{Ref: ref})
	if err != nil {
		n.t.Fatal(err)
	}
	return img
}

// files are those of an artifact, by their paths.
func (n *node) files(id string) map[string]string {
	n.t.Helper()
	layers, err := n.AddReference(id, "files")
	if err != nil {
		n.t.Fatal(err)
	}
	defer n.Store.Release("files")
	found := map[string]string{}
	for _, name := range []string{"d/one", "empty", "two"} {
		data, err := os.ReadFile(filepath.Join(layers.Dirs[0], name))
		if err != nil {
			n.t.Error(err)
		}
		found[name] = string(data)
	}
	return found
}

func (n *node) wantArtifact(got, want *model.Image) {
	n.t.Helper()
	if got.ID != want.ID || got.Artifact != "a/b" || got.Size != want.Size {
		n.t.Errorf("it is %+v, and was %+v", got, want)
	}
	if f := n.files(got.ID); f["d/one"] != "one" || f["empty"] != "" || len(f["two"]) != 300_000 {
		n.t.Errorf("files %.1000q", f)
	}
	manifest, err := n.Manifest(got.ID)
	if err != nil || !strings.Contains(string(manifest), `"note":"kept"`) {
		n.t.Errorf("manifest %s, %v", manifest, err)
	}
}

// TestAnArtifactIsSavedAndLoadedAsItIs, beside an image, for which the archive is still one of docker's.
func TestAnArtifactIsSavedAndLoadedAsItIs(t *testing.T) {
	n := newNode(t)
	want := n.artifact("registry.test/model:1")
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "x"}))
	second := newNode(t)
	got, err := second.ImportArchive(context.Background(),
		bytes.NewReader(n.save("registry.test/model:1", "registry.test/a:1")))
	if err != nil || len(got) != 2 || got[1].ID != id || got[1].Artifact != "" {
		t.Fatal(got, err)
	}
	second.wantArtifact(got[0], want)
	if got[0].RepoTags[0] != "registry.test/model:1" {
		t.Errorf("its names are %v", got[0].RepoTags)
	}
	// Alone, by its ID, and with all its blobs in the archive once.
	third := newNode(t)
	if got, err = third.ImportArchive(context.Background(), bytes.NewReader(n.save(want.ID, want.ID))); err != nil {
		t.Fatal(err)
	}
	third.wantArtifact(got[0], want)
}

// TestAnArtifactIsPushedAsItIs: with its digest, to another registry, to which only what it lacks is sent.
func TestAnArtifactIsPushedAsItIs(t *testing.T) {
	n := newNode(t)
	want := n.artifact("registry.test/model:1")
	n.others["other.test"] = n.other("other.test")
	n.reg.Close()
	pushed := n.push("registry.test/model:1", "other.test/team/model:2")
	if pushed.Digest != want.ID {
		t.Errorf("pushed with the digest %s, and not %s", pushed.Digest, want.ID)
	}
	if got := n.repull("other.test/team/model:2"); got.ID != want.ID || got.Artifact != "a/b" || got.Size != want.Size {
		t.Errorf("it is %+v there", got)
	}
	n.others["other.test"].ResetRequests()
	n.push(want.ID, "other.test/team/model:3")
	if list := sent(n.others["other.test"]); len(list) > 0 {
		t.Errorf("a second push sends %v", list)
	}
}

// TestAFileOfNoBytesIsPushed, before the push has ended, and with a length.
func TestAFileOfNoBytesIsPushed(t *testing.T) {
	n := newNode(t)
	img := n.artifact("registry.test/model:1")
	for i := range 20 {
		name := fmt.Sprintf("other%d.test", i)
		other := n.other(name)
		n.push(img.ID, name+"/model:1")
		lengths := map[int64]int{}
		for _, r := range other.Requests() {
			if r.Method == "PUT" && strings.Contains(r.Path, "/uploads/") {
				lengths[r.ContentLength]++
			}
		}
		if want := map[int64]int{0: 1, 3: 1, 7: 1, 300_000: 1}; !maps.Equal(lengths, want) {
			t.Fatalf("push %d: put were %v (blobs by their lengths), and not %v", i, lengths, want)
		}
	}
}

// TestASpoiltBlobOfAnArtifactIsNotSaved: an archive says by its names what is in it.
func TestASpoiltBlobOfAnArtifactIsNotSaved(t *testing.T) {
	n := newNode(t)
	img := n.artifact("registry.test/model:1")
	blobs, err := n.Blobs(img.ID)
	if err != nil || len(blobs) != 4 {
		t.Fatal(blobs, err)
	}
	if err := os.WriteFile(blobs[1].Path, []byte("eno"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = n.Save(context.Background(), []string{img.ID}, &out)
	if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), blobs[1].Digest.String()) {
		t.Errorf("error %v", err)
	}
	if err := n.Remove(context.Background(), img.ID); err != nil {
		t.Fatal(err)
	}
}
