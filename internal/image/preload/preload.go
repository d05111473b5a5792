// Package preload imports image archives from a directory of the node, for nodes without a registry. An archive is not
// read again if it has not changed since its import and all its images are still in the store. An archive whose name
// says so is imported once and then removed.
package preload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/config"
	"berth/internal/disk"
	"berth/internal/liblog"
	"berth/internal/model"
)

// Store is the image store as preloading uses it.
type Store interface {
	ImportArchiveKeeping(ctx context.Context, r io.Reader, keeps func(tag, id string) bool) ([]*model.Image, error)
	List(ctx context.Context) ([]*model.Image, error)
	Sync() error
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
	// Names are those of its images, also the tags that stayed with other images; an ID for each image that has none.
	Names  []string `json:"names"`
	Pinned bool     `json:"pinned"`
	// Synced says that the images of an archive that is imported once were on the disk: it is only to be removed.
	Synced bool `json:"synced,omitempty"`
}

// same tells whether an archive has not changed.
func (a *archive) same(b *archive) bool { return a.Size == b.Size && a.Modified.Equal(b.Modified) }

// preloading is the work of Run.
type preloading struct {
	Config
	known map[string]archive // what Record holds
	// tags are those of the images that there were when Run began, and of those that it has imported, with the IDs of the
	// images.
	tags map[string]string
}

// Run imports all archives in the order of their names. What cannot be imported is logged, and tried again at the next
// start.
//
// A new archive, and one that has changed, gives its tags to its images. One that is read again for the sake of an
// image that is missing leaves tags where they are if other images have them by now. So does every archive with a tag
// that was given to another image since Run began.
func Run(ctx context.Context, cfg Config) {
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			cfg.Log.Error("read the directory of images to preload", "directory", cfg.Dir, "error", err)
		}
		return
	}
	images, err := cfg.Store.List(ctx)
	if err != nil {
		cfg.Log.Error("list the images that are there before others are preloaded", "error", err)
		return
	}
	p := &preloading{Config: cfg, known: map[string]archive{}, tags: map[string]string{}}
	p.note(images)
	if data, err := os.ReadFile(cfg.Record); err == nil {
		_ = json.Unmarshal(data, &p.known) // what is spoilt is as good as nothing: all is imported again
	}
	there := map[string]bool{}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.ContainsFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) }) {
			continue
		}
		there[name] = true
		path, begin := filepath.Join(cfg.Dir, name), time.Now()
		tags, read, err := p.preload(ctx, name)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			cfg.Log.Error("preload images: it is tried again at the next start", "path", path, "error", err)
		case read:
			cfg.Log.Info("images are preloaded", "path", path, "tags", tags, "took_ms",
				liblog.Milliseconds(time.Since(begin)))
		}
	}
	before := len(p.known)
	maps.DeleteFunc(p.known, func(name string, _ archive) bool { return !there[name] })
	if len(p.known) < before {
		p.save()
	}
}

// note notes which tags images have.
func (p *preloading) note(images []*model.Image) {
	for _, img := range images {
		for _, tag := range img.RepoTags {
			p.tags[tag] = img.ID
		}
	}
}

// put records an archive.
func (p *preloading) put(name string, a archive) {
	p.known[name] = a
	p.save()
}

func (p *preloading) save() {
	data, err := json.Marshal(p.known)
	if err == nil {
		err = disk.WriteFile(p.Record, data, 0o600)
	}
	if err != nil {
		p.Log.Warn("archives of images are read again at the next start", "path", p.Record, "error", err)
	}
}

// preload imports one archive, and removes it where its name says so. read is false where an import is not necessary.
func (p *preloading) preload(ctx context.Context, name string) (tags []string, read bool, err error) {
	for {
		// A fifo would keep berthd waiting for a writer.
		file, err := os.OpenFile(filepath.Join(p.Dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, read, err
		}
		tags, imported, err := p.load(ctx, name, file)
		read = read || imported
		replaced := false
		if err == nil && strings.HasSuffix(name, config.PreloadOnce) {
			replaced, err = p.remove(name, file)
		}
		file.Close()
		if !replaced {
			return tags, read, err
		}
		p.Log.Info("an archive of images was replaced during its import, and is imported again", "path", file.Name())
	}
}

// load imports one archive. read is false where that is not necessary.
func (p *preloading) load(ctx context.Context, name string, file *os.File) (tags []string, read bool, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is no regular file", file.Name())
	}
	now := archive{Size: info.Size(), Modified: info.ModTime().UTC(), Pinned: p.Pin}
	before, imported := p.known[name]
	again := imported && before.same(&now)
	if again && (before.Synced || before.Pinned == now.Pinned && p.has(ctx, before.Names)) {
		return before.Names, false, nil
	}
	var kept []string // tags that stay with other images
	keeps := func(tag, id string) bool {
		stays := again || p.tags[tag] != id
		if stays {
			kept = append(kept, tag)
		}
		return stays
	}
	list, err := p.Store.ImportArchiveKeeping(ctx, file, keeps)
	if err != nil {
		return nil, true, err
	}
	p.note(list)
	for _, img := range list {
		if p.Pin {
			if err := p.Store.Pin(ctx, img.ID, true); err != nil {
				return nil, true, err
			}
		}
		now.Names = append(now.Names, img.RepoTags...)
		if len(img.RepoTags) == 0 {
			now.Names = append(now.Names, img.ID)
		}
	}
	slices.Sort(now.Names)
	tags = slices.Compact(slices.Clone(now.Names))
	now.Names = append(now.Names, kept...)
	slices.Sort(now.Names)
	now.Names = slices.Compact(now.Names)
	p.put(name, now)
	return tags, true, nil
}

// remove removes an archive that is imported once, when a failure of power does not take back the import any more.
// Where another archive has taken the place of the file that was imported, or the file has changed, replaced is true,
// and the archive stays.
func (p *preloading) remove(name string, file *os.File) (replaced bool, err error) {
	a := p.known[name]
	if !a.Synced {
		if err := p.Store.Sync(); err != nil {
			return false, err
		}
	}
	imported, err := file.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(file.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case !os.SameFile(there, imported) || !a.same(&archive{Size: there.Size(), Modified: there.ModTime()}):
		delete(p.known, name)
		p.save()
		return true, nil
	}
	if !a.Synced {
		a.Synced = true
		p.put(name, a)
	}
	if err := os.Remove(file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("its images are imported, and it is not removed: %w", err)
	}
	// The record says that the archive is not imported again, until the archive is gone for good.
	if err := disk.SyncDir(p.Dir); err != nil {
		return false, err
	}
	delete(p.known, name)
	p.save()
	return false, nil
}

func (p *preloading) has(ctx context.Context, names []string) bool {
	for _, name := range names {
		if _, err := p.Store.Get(ctx, name); err != nil {
			return false
		}
	}
	return true
}
