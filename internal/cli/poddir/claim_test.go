package poddir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestADirectoryOfManifestsHasOneClaim(t *testing.T) {
	store := &Store{Root: t.TempDir(), Address: "unix:///a"}
	if store.WasClaimed("/m") {
		t.Error("it was claimed before")
	}
	release, err := store.Claim("/m")
	if err != nil {
		t.Fatal(err)
	}
	var claimed *ClaimedError
	if _, err := store.Claim("/m"); !errors.As(err, &claimed) || claimed.PID != fmt.Sprint(os.Getpid()) {
		t.Errorf("a second claim: %v", err)
	}
	for _, other := range []struct{ address, directory string }{{"unix:///b", "/m"}, {"unix:///a", "/n"}} {
		release, err := (&Store{Root: store.Root, Address: other.address}).Claim(other.directory)
		if err != nil {
			t.Errorf("%v: %v", other, err)
			continue
		}
		release()
	}
	release()
	if release, err = store.Claim("/m"); err != nil {
		t.Fatal(err)
	}
	release()
	if !store.WasClaimed("/m") {
		t.Error("it was not claimed")
	}
}

func TestAPodIsOfADirectoryIfItsRecordSaysSo(t *testing.T) {
	store := &Store{Root: t.TempDir(), Address: "unix:///a"}
	dir, made, err := store.Create(Record{Namespace: "n", Name: "p", UID: "u", Applied: "/m"})
	if err != nil {
		t.Fatal(err)
	}
	made()
	if got := store.Applied("n", "p", "u"); got != "/m" {
		t.Errorf("it is of %q", got)
	}
	if got := store.Applied("n", "p", "v"); got != "" {
		t.Errorf("another pod is of %q", got)
	}
	if got := (&Store{Root: store.Root, Address: "unix:///b"}).Applied("n", "p", "u"); got != "" {
		t.Errorf("a pod of another runtime is of %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir.Path, recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := store.Applied("n", "p", "u"); got != "" {
		t.Errorf("with a damaged record it is of %q", got)
	}
}
