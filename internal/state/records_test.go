package state

import (
	"os"
	"path/filepath"
	"testing"
)

type thing struct{ N int }

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	r := Records{Dir: filepath.Join(t.TempDir(), "things"), File: "thing.json"}
	for i, id := range []string{"a", "b", "a"} {
		if err := r.Save(id, thing{i}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]*thing{}
	broken, err := r.Load(func(id string) any { got[id] = &thing{}; return got[id] })
	if err != nil || len(broken) != 0 {
		t.Fatal(broken, err)
	}
	if len(got) != 2 || got["a"].N != 2 || got["b"].N != 1 {
		t.Errorf("got %v", got)
	}
}

func TestATornOrMissingRecordIsReported(t *testing.T) {
	r := Records{Dir: t.TempDir(), File: "thing.json"}
	if err := r.Save("good", thing{1}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.Path("torn"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Path("torn"), "thing.json"), []byte(`{"N":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.Path("empty"), 0o711); err != nil {
		t.Fatal(err)
	}
	broken, err := r.Load(func(string) any { return &thing{} })
	if err != nil {
		t.Fatal(err)
	}
	if len(broken) != 2 || broken[0].ID != "empty" || broken[1].ID != "torn" {
		t.Errorf("broken: %v", broken)
	}
}

func TestOneDaemonHoldsADirectory(t *testing.T) {
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil {
		t.Fatal("two hold it")
	}
	release()
	release, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}
