package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth/internal/disk"
)

// DefaultDir is where Berth's configuration is.
const DefaultDir = "/etc/berth"

// Record is what a migration has written, by which it is undone. It is on the disk before the files that it names, and
// has the only copy of what they held before: both are synced, since a power failure may come at any time.
type Record struct {
	Runtime  string    `json:"runtime"`
	Files    []Written `json:"files"`
	Dirs     []string  `json:"dirs"`     // that were made, each after its parent
	Archives []string  `json:"archives"` // of images, for the next start of berthd
	// Sockets are those that files which the migration has not written had before somebody changed them.
	Sockets *Sockets `json:"sockets,omitempty"`

	path string
}

// Written is a file, and what was there before.
type Written struct {
	Path   string      `json:"path"`
	Sum    string      `json:"sum"`              // of the bytes that were written
	Last   string      `json:"last,omitempty"`   // Sum of an earlier run, until those of Sum are in the file
	Before []byte      `json:"before,omitempty"` // of a file that there was
	Mode   fs.FileMode `json:"mode,omitempty"`   // of it; 0: there was none
	UID    int         `json:"uid,omitempty"`
	GID    int         `json:"gid,omitempty"`
}

// Open reads the record of a migration; there may be none yet. name is the runtime's, as files have it.
func Open(dir, name string) (*Record, error) {
	r := &Record{Runtime: name, path: filepath.Join(dir, "migrate", name+".json")}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		if err = json.Unmarshal(data, r); err != nil {
			err = fmt.Errorf("%s: %w", r.path, err)
		}
	}
	return r, err
}

// Empty is whether nothing is written.
func (r *Record) Empty() bool { return len(r.Files)+len(r.Archives)+len(r.Dirs) == 0 }

// ReportPath is where the report is kept beside the record.
func (r *Record) ReportPath() string { return strings.TrimSuffix(r.path, ".json") + ".txt" }

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func (r *Record) save() error {
	if r.Empty() {
		err := os.Remove(r.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := makeDir(filepath.Dir(r.path)); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteFileSynced(r.path, append(data, '\n'), 0o600)
}

// Changes are the paths of those of the files that are not there yet as they are to be.
func Changes(files []File) []string {
	var out []string
	for _, f := range files {
		if data, err := os.ReadFile(f.Path); err != nil || string(data) != string(f.Data) {
			out = append(out, f.Path)
		}
	}
	return out
}

// Keep keeps the sockets that files name, from the next save on.
func (r *Record) Keep(s *Sockets) { r.Sockets = s.since(r.Sockets) }

// Apply writes files, and takes back those below dir that an earlier run has written and this one does not want. A
// file that somebody has changed since is not written over.
func (r *Record) Apply(dir string, files []File) error {
	for i, f := range files {
		path, err := filepath.EvalSymlinks(f.Path)
		if err == nil {
			files[i].Path = path
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, w := range r.Files {
		if changed, err := w.changed(); err != nil {
			return err
		} else if changed {
			return fmt.Errorf("%s was changed after it was written: move what you want to keep elsewhere, and remove it", w.Path)
		}
	}
	var gone []Written
	for _, w := range r.Files {
		wanted := slices.ContainsFunc(files, func(f File) bool { return f.Path == w.Path })
		if !wanted && strings.HasPrefix(w.Path, filepath.Clean(dir)+"/") {
			gone = append(gone, w)
		}
	}
	for _, w := range gone {
		if err := w.restore(); err != nil {
			return err
		}
		r.Files = slices.DeleteFunc(r.Files, func(o Written) bool { return o.Path == w.Path })
	}
	for _, f := range files {
		if err := r.write(f); err != nil {
			return err
		}
	}
	return r.save()
}

func (r *Record) write(f File) error {
	for _, d := range missing(filepath.Dir(f.Path)) {
		if !slices.Contains(r.Dirs, d) {
			r.Dirs = append(r.Dirs, d)
		}
	}
	mode := f.Mode
	i := slices.IndexFunc(r.Files, func(w Written) bool { return w.Path == f.Path })
	if i < 0 {
		w, err := before(f.Path)
		if err != nil {
			return err
		}
		r.Files, i = append(r.Files, w), len(r.Files)
	}
	w := &r.Files[i]
	// Should the write fail, the file has what an earlier run has written, and nobody else has changed it.
	if data, err := os.ReadFile(f.Path); err == nil && w.wrote(data) {
		w.Last = sum(data)
	}
	w.Sum = sum(f.Data)
	if mode == 0 {
		mode = w.Mode
	}
	if err := r.save(); err != nil {
		return err
	}
	if err := makeDir(filepath.Dir(f.Path)); err != nil {
		return err
	}
	if err := disk.WriteFileSynced(f.Path, f.Data, mode); err != nil {
		return err
	}
	w.Last = ""
	if w.Mode != 0 {
		return os.Chown(f.Path, w.UID, w.GID)
	}
	return nil
}

// missing are the directories that have to be made for one to be there, each after its parent.
func missing(dir string) []string {
	var out []string
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		out = append([]string{dir}, out...)
	}
	return out
}

// makeDir makes a directory and those above it that are missing, and brings them to the disk.
func makeDir(dir string) error {
	made := missing(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range made {
		if err := disk.SyncDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

// before is what there is at a path.
func before(path string) (Written, error) {
	w := Written{Path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	if !info.Mode().IsRegular() {
		return w, fmt.Errorf("%s is no regular file", path)
	}
	w.Mode = info.Mode().Perm()
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		w.UID, w.GID = int(s.Uid), int(s.Gid)
	}
	w.Before, err = os.ReadFile(path)
	return w, err
}

// changed is whether somebody has changed a file since. One that is gone, or that is as it was before, is not.
func (w *Written) changed() (bool, error) {
	data, err := os.ReadFile(w.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && !w.wrote(data) && (w.Mode == 0 || string(data) != string(w.Before)), err
}

// wrote is whether a file's content is from a migration. The last run may have failed before it wrote the file.
func (w *Written) wrote(data []byte) bool {
	s := sum(data)
	return s == w.Sum || s == w.Last
}

func (w *Written) restore() error {
	if w.Mode == 0 {
		if err := os.Remove(w.Path); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		return disk.SyncDir(filepath.Dir(w.Path))
	}
	if err := disk.WriteFileSynced(w.Path, w.Before, w.Mode); err != nil {
		return err
	}
	return os.Chown(w.Path, w.UID, w.GID)
}

// AddArchive notes an archive that is about to be written.
func (r *Record) AddArchive(path string) error {
	for _, d := range missing(filepath.Dir(path)) {
		if !slices.Contains(r.Dirs, d) {
			r.Dirs = append(r.Dirs, d)
		}
	}
	if !slices.Contains(r.Archives, path) {
		r.Archives = append(r.Archives, path)
	}
	return r.save()
}

// Partial ends the name of an archive while it is written. berthd passes over such names.
const Partial = ".partial"

// KeepArchives removes all archives that are noted but these. An image of an earlier run may be gone since, or have
// other names, and berthd would give it the names that it had.
func (r *Record) KeepArchives(paths []string) error {
	var errs []error
	before := len(r.Archives)
	r.Archives = slices.DeleteFunc(r.Archives, func(path string) bool {
		if slices.Contains(paths, path) {
			return false
		}
		err := removeArchive(path)
		errs = append(errs, err)
		return err == nil
	})
	if len(r.Archives) < before {
		errs = append(errs, r.save())
	}
	return errors.Join(errs...)
}

// removeArchive removes an archive, whole or in part. That it is not there is no error: berthd has imported it.
func removeArchive(path string) error {
	var errs []error
	for _, p := range []string{path, path + Partial} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Revert puts everything back, and returns what it did. What somebody has changed since stays as it is, with an
// error, and in the record.
func (r *Record) Revert() (done []string, err error) {
	var errs []error
	var kept []Written
	for _, w := range slices.Backward(r.Files) {
		changed, err := w.changed()
		if err == nil && changed {
			err = fmt.Errorf("%s was changed after it was written, and stays: remove it, and try again", w.Path)
		}
		if err == nil {
			err = w.restore()
		}
		switch {
		case err != nil:
			errs, kept = append(errs, err), append(kept, w)
		case w.Mode == 0:
			done = append(done, "removed "+w.Path)
		default:
			done = append(done, "restored "+w.Path)
		}
	}
	r.Files = kept
	for _, path := range r.Archives {
		_, statErr := os.Lstat(path)
		if err := removeArchive(path); err != nil {
			errs = append(errs, err)
		} else if statErr == nil {
			done = append(done, "removed "+path)
		}
	}
	r.Archives = nil
	if err := os.Remove(r.ReportPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	dirs := r.Dirs
	if len(errs) == 0 {
		r.Dirs = nil
	}
	errs = append(errs, r.save())
	if err := errors.Join(errs...); err != nil {
		return done, err
	}
	// A directory that has other files by now stays.
	_ = os.Remove(filepath.Dir(r.path))
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir)
	}
	return done, nil
}

// WriteReport keeps the report beside the record.
func (r *Record) WriteReport(p *Plan) error { return disk.WriteFile(r.ReportPath(), p.Report(), 0o600) }
