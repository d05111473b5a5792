package preload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// store takes each archive for the name of its one image.
type store struct {
	images map[string]bool // and whether they are pinned
	reads  []string
}

func (s *store) ImportArchive(_ context.Context, r io.Reader) ([]*model.Image, error) {
	data, err := io.ReadAll(r)
	if err != nil || strings.Contains(string(data), "broken") {
		return nil, errors.Join(err, errors.New("no archive"))
	}
	name := string(data)
	s.reads = append(s.reads, name)
	s.images[name] = false
	return []*model.Image{{ID: name, RepoTags: []string{name}}}, nil
}

func (s *store) Get(_ context.Context, name string) (*model.Image, error) {
	if _, ok := s.images[name]; !ok {
		return nil, errors.New("not found")
	}
	return &model.Image{ID: name}, nil
}

func (s *store) Pin(_ context.Context, name string, pinned bool) error {
	s.images[name] = pinned
	return nil
}

func TestArchivesAreImportedOnceUntilTheyChange(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	s := &store{images: map[string]bool{}}
	cfg := Config{
		Dir: filepath.Join(dir, "preload"), Record: filepath.Join(dir, "record"), Store: s,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	run := func(want ...string) {
		t.Helper()
		s.reads = nil
		Run(t.Context(), cfg)
		if !slices.Equal(s.reads, want) {
			t.Errorf("%q are read, want %q\n%s", s.reads, want, &log)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run() // there is no directory
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write("b.tar.gz", "b")
	write("a.tar", "a")
	write("c.tar.part", "c")
	write("broken.tar", "broken")
	if err := unix.Mkfifo(filepath.Join(cfg.Dir, "fifo.tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("a", "b")
	for _, name := range []string{"broken.tar", "fifo.tar"} {
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not name %s:\n%s", name, &log)
		}
	}
	run()
	delete(s.images, "a") // by a kubelet that needed room
	run("a")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(cfg.Dir, "b.tar.gz"), old, old); err != nil {
		t.Fatal(err)
	}
	run("b")
	cfg.Pin = true
	run("a", "b")
	if !s.images["a"] || !s.images["b"] {
		t.Errorf("not all are pinned: %v", s.images)
	}
	if err := os.WriteFile(cfg.Record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("a", "b")
}
