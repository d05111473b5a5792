package preload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// store takes an archive for the tags of an image and, after an equals sign, its ID. Without one, the ID is the tag.
type store struct {
	images map[string]bool   // by ID, and whether they are pinned
	tags   map[string]string // to IDs
	reads  []string
	synced []string // what had been read by the last sync
	sync   error
	during func() // something that happens while an archive is imported
}

func newStore() *store { return &store{images: map[string]bool{}, tags: map[string]string{}} }

func (s *store) ImportArchiveKeeping(
	_ context.Context, r io.Reader, keeps func(tag, id string) bool,
) ([]*model.Image, error) {
	data, err := io.ReadAll(r)
	if err != nil || strings.Contains(string(data), "broken") {
		return nil, errors.Join(err, errors.New("no archive"))
	}
	s.reads = append(s.reads, string(data))
	if s.during != nil {
		s.during()
	}
	tags, id, ok := strings.Cut(string(data), "=")
	if !ok {
		id = tags
	}
	s.images[id] = false
	img := &model.Image{ID: id}
	for tag := range strings.SplitSeq(tags, ",") {
		if has, ok := s.tags[tag]; !ok || has == id || !keeps(tag, has) {
			s.tags[tag] = id
			img.RepoTags = append(img.RepoTags, tag)
		}
	}
	return []*model.Image{img}, nil
}

func (s *store) Get(_ context.Context, name string) (*model.Image, error) {
	if id, ok := s.tags[name]; ok {
		name = id
	}
	if _, ok := s.images[name]; !ok {
		return nil, errors.New("not found")
	}
	return &model.Image{ID: name}, nil
}

func (s *store) List(context.Context) ([]*model.Image, error) {
	var list []*model.Image
	for tag, id := range s.tags {
		list = append(list, &model.Image{ID: id, RepoTags: []string{tag}})
	}
	return list, nil
}

func (s *store) Pin(_ context.Context, name string, pinned bool) error {
	s.images[name] = pinned
	return nil
}

func (s *store) Sync() error {
	s.synced = slices.Clone(s.reads)
	return s.sync
}

// remove removes an image, as a kubelet does that needs room.
func (s *store) remove(id string) {
	delete(s.images, id)
	maps.DeleteFunc(s.tags, func(_, of string) bool { return of == id })
}

func TestArchivesAreImportedOnceUntilTheyChange(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	s := newStore()
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
	s.remove("a")
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

// newDir is a directory of archives, and the configuration of Run for it.
func newDir(t *testing.T) (*store, Config) {
	t.Helper()
	dir := t.TempDir()
	s := newStore()
	return s, Config{Dir: dir, Record: filepath.Join(t.TempDir(), "record"), Store: s, Log: slog.New(slog.DiscardHandler)}
}

func (cfg *Config) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cfg.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// names are those of the files in the directory of archives.
func (cfg *Config) names(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestAnArchiveThatIsImportedOnceGoes, when its images are on the disk and not before, and comes back neither by a
// removal of the image nor by a removal of the archive that has failed. It was seen to fail where such an archive
// stayed, where it went before the sync, and where the record did not say that only its removal was left.
func TestAnArchiveThatIsImportedOnceGoes(t *testing.T) {
	s, cfg := newDir(t)
	const name = "containerd-1.once.tar"
	cfg.write(t, name, "tag=a")
	cfg.write(t, "stays.tar", "stays")
	cfg.write(t, name+".partial", "tag=half")
	s.sync = errors.New("input/output error")
	Run(t.Context(), cfg)
	if !slices.Contains(cfg.names(t), name) {
		t.Fatal("the archive is gone before its image is on the disk")
	}
	s.sync = nil
	kept := filepath.Join(cfg.Dir, name)
	if err := os.Rename(kept, kept+"-kept"); err != nil { // a copy of the archive as it is, to be put back
		t.Fatal(err)
	}
	if err := os.Link(kept+"-kept", kept); err != nil {
		t.Fatal(err)
	}
	Run(t.Context(), cfg)
	if want := []string{"tag=a", "stays"}; !slices.Equal(s.reads, want) || !slices.Equal(s.synced, want) {
		t.Errorf("%q are read, and %q of it is synced, and should be %q", s.reads, s.synced, want)
	}
	if want := []string{name + "-kept", name + ".partial", "stays.tar"}; !slices.Equal(cfg.names(t), want) {
		t.Errorf("there are %q, and should be %q", cfg.names(t), want)
	}
	if data, err := os.ReadFile(cfg.Record); err != nil || strings.Contains(string(data), name) {
		t.Errorf("the record is %s, %v", data, err)
	}

	// A removal that failed left it.
	if err := os.Rename(kept+"-kept", kept); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(map[string]archive{
		name: {Size: info.Size(), Modified: info.ModTime().UTC(), Names: []string{"tag"}, Synced: true},
	})
	if err == nil {
		err = os.WriteFile(cfg.Record, record, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.remove("a")
	s.reads = nil
	Run(t.Context(), cfg)
	if slices.Contains(s.reads, "tag=a") || slices.Contains(cfg.names(t), name) {
		t.Errorf("%q are read, and there are %q", s.reads, cfg.names(t))
	}
}

// TestAnArchiveThatReplacesAnotherDuringItsImportIsImported before it goes, whether it is another file or the same one
// with other content. Seen to fail where the path was removed whatever was there.
func TestAnArchiveThatReplacesAnotherDuringItsImportIsImported(t *testing.T) {
	for way, replace := range map[string]func(t *testing.T, cfg *Config, name string){
		"renamed": func(t *testing.T, cfg *Config, name string) {
			cfg.write(t, "copy", "new=2")
			if err := os.Rename(filepath.Join(cfg.Dir, "copy"), filepath.Join(cfg.Dir, name)); err != nil {
				t.Error(err)
			}
		},
		"written": func(t *testing.T, cfg *Config, name string) { cfg.write(t, name, "newer=2") },
	} {
		s, cfg := newDir(t)
		const name = "a.once.tar"
		cfg.write(t, name, "old=1")
		s.during = func() {
			s.during = nil
			replace(t, &cfg, name)
		}
		Run(t.Context(), cfg)
		if _, ok := s.images["2"]; !ok || len(s.reads) != 2 || len(cfg.names(t)) > 0 {
			t.Errorf("%s: %q are read, and there are %q", way, s.reads, cfg.names(t))
		}
	}
}

// TestAnImageIsImportedAgainWhereItsTagHadStayedWithAnother that is gone now: a node without a registry has the image
// from the archive alone. Seen to fail where the record of an archive had only the tags that its images got.
func TestAnImageIsImportedAgainWhereItsTagHadStayedWithAnother(t *testing.T) {
	s, cfg := newDir(t)
	cfg.write(t, "a.tar", "latest,one=a")
	s.during = func() { s.tags["latest"], s.images["pulled"] = "pulled", false }
	Run(t.Context(), cfg)
	if s.tags["latest"] != "pulled" || s.tags["one"] != "a" {
		t.Errorf("the tag was pulled during the import: %v", s.tags)
	}
	s.during = nil
	Run(t.Context(), cfg)
	if len(s.reads) != 1 {
		t.Errorf("%q are read, and no image is missing", s.reads)
	}
	s.remove("pulled")
	Run(t.Context(), cfg)
	if s.tags["latest"] != "a" {
		t.Errorf("the other image is gone: %v", s.tags)
	}
	s.tags["latest"], s.images["pulled"] = "pulled", false
	delete(s.tags, "one")
	Run(t.Context(), cfg)
	s.remove("pulled")
	Run(t.Context(), cfg)
	if s.tags["latest"] != "a" || s.tags["one"] != "a" {
		t.Errorf("the other image is gone again: %v", s.tags)
	}
}

// TestATagThatHasMovedSinceAnImportStays with the image that has it now, when the archive is read again since another
// image of it is missing, also after an attempt that has failed and after a kill in the middle. An archive that is new
// or has changed takes its tags. It was seen to fail where every import moved tags, and where the imports of a Run that
// was ended were not recorded.
func TestATagThatHasMovedSinceAnImportStays(t *testing.T) {
	s, cfg := newDir(t)
	cfg.write(t, "a.tar", "latest,one=a")
	ctx, cancel := context.WithCancel(t.Context())
	cfg.write(t, "b.tar", "b")
	s.during = func() {
		if len(s.reads) == 2 {
			cancel()
		}
	}
	Run(ctx, cfg)
	s.tags["latest"], s.images["pulled"] = "pulled", false
	delete(s.tags, "one")
	s.during = nil
	want := func(when, latest, one string) {
		t.Helper()
		if s.tags["latest"] != latest || s.tags["one"] != one {
			t.Errorf("%s: the tags are %v", when, s.tags)
		}
	}
	s.remove("a")
	s.reads = nil
	Run(t.Context(), cfg)
	want("the image was missing", "pulled", "a")
	if !slices.Equal(s.reads, []string{"latest,one=a", "b"}) && !slices.Equal(s.reads, []string{"latest,one=a"}) {
		t.Errorf("%q are read", s.reads)
	}
	cfg.write(t, "a.tar", "latest,one=anew")
	Run(t.Context(), cfg)
	want("the archive has changed", "anew", "anew")
	cfg.write(t, "c.tar", "latest=c")
	cfg.write(t, "d.tar", "latest=d")
	Run(t.Context(), cfg)
	want("two archives are new", "d", "anew")
	s.during = func() { s.tags["latest"], s.images["pulled"] = "pulled", false }
	cfg.write(t, "e.tar", "latest,one=e")
	Run(t.Context(), cfg)
	want("the tag is pulled during the import", "pulled", "e")
}
