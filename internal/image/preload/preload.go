// Package preload imports image archives from a directory of the node, for nodes without a registry. An archive is not
// read again if it has not changed since its import and all its images are still in the store.
package preload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/liblog"
	"berth/internal/model"
)

// Store is the image store as preloading uses it.
type Store interface {
	ImportArchive(ctx context.Context, r io.Reader) ([]*model.Image, error)
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	Pin(ctx context.Context, refOrID string, pinned bool) error
}

// Config is the configuration of Run.
type Config struct {
	Dir    string // with the archives; it need not exist
	Record string // the file that says what was imported
	Pin    bool   // images of archives are pinned
	Store  Store
	Log    *slog.Logger
}

// suffixes are those of the names of archives. Others are left alone: a copy that is under way often
// has one of its own.
var suffixes = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"}

// archive is an archive as it was when it was imported. Its JSON is a part of the format of Config.Record.
type archive struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Names    []string  `json:"names"` // of its images; an ID for each that has none
	Pinned   bool      `json:"pinned"`
}

// Run imports all archives in the order of their names. What cannot be imported is logged, and tried again at the next
// start.
func Run(ctx context.Context, cfg Config) {
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			cfg.Log.Error("read the directory of images to preload", "directory", cfg.Dir, "error", err)
		}
		return
	}
	known := map[string]archive{}
	if data, err := os.ReadFile(cfg.Record); err == nil {
		_ = json.Unmarshal(data, &known) // what is spoilt is as good as nothing: all is imported again
	}
	done := map[string]archive{}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.ContainsFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) }) {
			continue
		}
		before, imported := known[name]
		path, begin := filepath.Join(cfg.Dir, name), time.Now()
		now, read, err := cfg.load(ctx, path, before, imported)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			cfg.Log.Error("preload images: it is tried again at the next start", "path", path, "error", err)
			continue
		case read:
			cfg.Log.Info("images are preloaded", "path", path, "tags", now.Names, "took_ms",
				liblog.Milliseconds(time.Since(begin)))
		}
		done[name] = now
	}
	if err := cfg.save(done); err != nil {
		cfg.Log.Warn("archives of images are read again at the next start", "path", cfg.Record, "error", err)
	}
}

func (cfg *Config) save(done map[string]archive) error {
	data, err := json.Marshal(done)
	if err != nil {
		return err
	}
	return disk.WriteFile(cfg.Record, data, 0o600)
}

// load imports one archive. read is false where that is not necessary.
func (cfg *Config) load(ctx context.Context, path string, before archive, imported bool) (now archive, read bool,
	err error) {
	// A fifo would keep berthd waiting for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return now, false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return now, false, err
	}
	if !info.Mode().IsRegular() {
		return now, false, fmt.Errorf("%s is no regular file", path)
	}
	now = archive{Size: info.Size(), Modified: info.ModTime().UTC(), Pinned: cfg.Pin}
	if imported && before.Size == now.Size && before.Modified.Equal(now.Modified) && before.Pinned == now.Pinned &&
		cfg.has(ctx, before.Names) {
		return before, false, nil
	}
	list, err := cfg.Store.ImportArchive(ctx, file)
	if err != nil {
		return now, true, err
	}
	for _, img := range list {
		if cfg.Pin {
			if err := cfg.Store.Pin(ctx, img.ID, true); err != nil {
				return now, true, err
			}
		}
		now.Names = append(now.Names, img.RepoTags...)
		if len(img.RepoTags) == 0 {
			now.Names = append(now.Names, img.ID)
		}
	}
	slices.Sort(now.Names)
	now.Names = slices.Compact(now.Names)
	return now, true, nil
}

func (cfg *Config) has(ctx context.Context, names []string) bool {
	for _, name := range names {
		if _, err := cfg.Store.Get(ctx, name); err != nil {
			return false
		}
	}
	return true
}
