package image

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth/internal/asroot"
	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// verifiers has the store ask image verifiers in a new directory, which it returns.
func (f *fixture) verifiers() (dir string) {
	f.t.Helper()
	asroot.Need(f.t, "PID namespaces, and programs of root")
	dir = f.t.TempDir()
	f.cfg.Verifiers = VerifierSettings{Dir: dir, Max: -1, Timeout: 20 * time.Second}
	adopt, err := f.Prepare(f.cfg.Settings)
	if err != nil {
		f.t.Fatal(err)
	}
	adopt()
	return dir
}

// verifier writes a verifier, a script of sh.
func (f *fixture) verifier(dir, script string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "verifier"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

// TestAnImageThatAVerifierRejectsIsNotPulled: nothing but its name is asked for at the registry, and nobody is told of
// its layers. Seen to fail with verifiers asked after the documents of the image were read.
func TestAnImageThatAVerifierRejectsIsNotPulled(t *testing.T) {
	f := newFixture(t)
	dir := f.verifiers()
	f.verifier(dir, "echo no signature; exit 1")
	f.push("a:1", files("a", "1"))
	f.reg.ResetRequests()
	told := false
	_, err := f.Pull(t.Context(), PullRequest{Ref: host + "a:1", Progress: func(model.PullProgress) { told = true }})
	var unverified *model.UnverifiedError
	if !errors.As(err, &unverified) || !unverified.Rejected || unverified.Verifier != "verifier" {
		t.Fatalf("error %v", err)
	}
	if told {
		t.Error("the client was told of layers")
	}
	for _, r := range f.reg.Requests() {
		if strings.Contains(r.Path, "/blobs/") || r.Method != "HEAD" && strings.Contains(r.Path, "/manifests/") {
			t.Errorf("the registry was asked: %s %s", r.Method, r.Path)
		}
	}
	f.wantNothing()
	f.verifier(dir, "exit 0")
	f.pull("a:1")
}

// TestWhatIsVerifiedIsWhatIsPulled: the tag moves to another image while the verifier looks.
func TestWhatIsVerifiedIsWhatIsPulled(t *testing.T) {
	f := newFixture(t)
	dir, out := f.verifiers(), t.TempDir()
	f.verifier(dir, fmt.Sprintf("cd %s; echo $4 > digest; touch asked; while [ ! -e go ]; do sleep 0.01; done", out))
	good := f.push("a:1", files("a", "good"))
	f.push("a:bad", files("a", "bad"))
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for t.Context().Err() == nil {
			if _, err := os.Stat(filepath.Join(out, "asked")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		f.push("a:1", files("a", "bad"))
		if err := os.WriteFile(filepath.Join(out, "go"), nil, 0o644); err != nil {
			t.Error(err)
		}
	}()
	got := f.pull("a:1")
	<-moved
	if got != id(t, good) {
		t.Errorf("the image %s was pulled, and %s was verified", got, id(t, good))
	}
	told, err := os.ReadFile(filepath.Join(out, "digest"))
	if want := digestOf(t, good); err != nil || strings.TrimSpace(string(told)) != want {
		t.Errorf("the verifier was told %q, want %s; %v", told, want, err)
	}
	if got := f.pull("a:1"); got == id(t, good) {
		t.Error("the tag has not moved")
	}
}

// TestVerifiersAreAskedAtEachPull, of an index by its own digest and by the name in full, also if the image is here. An
// image that is rejected then stays as it was. One of an archive is not verified.
func TestVerifiersAreAskedAtEachPull(t *testing.T) {
	f := newFixture(t)
	dir, out := f.verifiers(), filepath.Join(t.TempDir(), "asked")
	f.verifier(dir, fmt.Sprintf("echo $2 $4 >> %s", out))
	img := f.push("library/a:1", files("a", "1"))
	index, err := rt.Index(false, img)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.reg.Push("library/a:2", index); err != nil {
		t.Fatal(err)
	}
	digest := digestOf(t, index)
	for _, ref := range []string{"docker.io/library/a:1", "a:1", "a:2", "a:other@" + digest} {
		if _, err := f.Pull(t.Context(), PullRequest{Ref: ref}); err != nil {
			t.Fatal(err)
		}
	}
	asked, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	const repo = "docker.io/library/a"
	want := []string{repo + ":1 " + digestOf(t, img), repo + ":1 " + digestOf(t, img), repo + ":2 " + digest,
		repo + "@" + digest + " " + digest}
	if got := strings.Split(strings.TrimSpace(string(asked)), "\n"); !slices.Equal(got, want) {
		t.Errorf("asked was for\n%q, want\n%q", got, want)
	}
	f.verifier(dir, "exit 1")
	if _, err := f.Pull(t.Context(), PullRequest{Ref: "a:1"}); err == nil {
		t.Error("the image was pulled again")
	}
	if have, err := f.Get(t.Context(), "a:1"); err != nil || have.ID != id(t, img) {
		t.Errorf("the image is %+v, %v", have, err)
	}
	ref, err := name.ParseReference("registry.test/loaded:1")
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(ref, img, &archive); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ImportArchive(t.Context(), &archive); err != nil {
		t.Errorf("an archive: %v", err)
	}
}
