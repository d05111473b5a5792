package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/codec"
	"berth/internal/disk"
)

// Records is a directory with one directory for each object, named by its ID, in which the record stands beside
// whatever else the object keeps there.
type Records struct {
	Dir  string // absolute
	File string // the record's name in each object's directory
	// Replaceable says that what the records hold can be had again, or done without: Load reports a record that the disk
	// does not return as Broken, as one that is damaged.
	Replaceable bool
}

// Path is an object's directory.
func (r Records) Path(id string) string { return filepath.Join(r.Dir, id) }

// Save replaces the record of an object. Readers and a crash see the old one or the new one, never a part.
func (r Records) Save(id string, v any) error { return r.SaveFile(id, r.File, v) }

// SaveTwice is Save, but writes this version to both files of the record, so that one of them may be damaged later
// without any loss. If the second file cannot be written, the record has only one file, and that is no error.
func (r Records) SaveTwice(id string, v any) error {
	data, err := codec.Marshal(v)
	if err != nil {
		return fmt.Errorf("record %s: %w", id, err)
	}
	if err := r.write(id, r.File, data); err != nil {
		return err
	}
	next := filepath.Join(r.Path(id), r.File) + spare
	whole, err := fill(next, data, true)
	if err != nil && !whole {
		_ = os.Remove(next)
	}
	return nil
}

// SaveFile replaces a further file of an object in the same way.
func (r Records) SaveFile(id, name string, v any) error {
	data, err := codec.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, id, err)
	}
	return r.write(id, name, data)
}

// LoadFile reads what SaveFile wrote. What a newer berthd has written is a FormatError.
func (r Records) LoadFile(id, name string, v any) error {
	_, err := read(filepath.Join(r.Path(id), name), v)
	return err
}

// readFile is a variable for tests.
var readFile = disk.ReadFile

func read(path string, v any) (isCopy bool, err error) {
	data, err := readFile(path)
	if err != nil {
		return false, err
	}
	if isCopy, err = unseal(path, data); err == nil {
		err = codec.Unmarshal(data, v)
	}
	var newer *FormatError
	if err != nil && !errors.As(err, &newer) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return isCopy, err
}

// spare ends the name of the file beside a record that its next version is written into. The two then change places,
// so that a record has two files for all its versions: on ext4 a file that is new looks for an inode among
// all that were freed in the minutes before, and one that is renamed over another has its blocks written out.
const spare = ".spare"

// slack is how many spaces a file has after its version of the record, if the disk has room for them. The last versions
// of a record are longer than the earlier ones by a word or two, a time and an exit code. With slack, they fit into the
// existing files on a full disk.
const slack = 512

func (r Records) write(id, name string, data []byte) error {
	dir := r.Path(id)
	path := filepath.Join(dir, name)
	next := path + spare
	whole, err := fill(next, data, false)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			whole, err = fill(next, data, false)
		}
	}
	if disk.Full(err) && replaceInPlace(path, next, data) == nil {
		return nil
	}
	if err == nil {
		if err = exchange(next, path); err != nil {
			whole = false
		}
	}
	if err != nil {
		if !whole {
			_ = os.Remove(next)
		}
		return fmt.Errorf("write record of %s: %w", id, err)
	}
	return nil
}

// fill overwrites a file with a sealed record, and with slack if there is room for it. See disk.Overwrite for whole.
func fill(path string, data []byte, isCopy bool) (whole bool, err error) {
	for _, spaces := range []int{slack, 0} {
		var sealed []byte
		if sealed, err = seal(data, isCopy, spaces); err != nil {
			return true, err
		}
		if whole, err = disk.Overwrite(path, sealed); !whole || !disk.Full(err) {
			break
		}
	}
	return whole, err
}

// replaceInPlace writes a record over the file of its newest version, which has room. If the write is cut off, a reader
// finds the second file, which is first marked as older than the newest version.
func replaceInPlace(path, second string, data []byte) error {
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	older, err := os.ReadFile(second)
	if err == nil {
		var isCopy bool
		if isCopy, err = unseal(second, older); err == nil && isCopy {
			_, err = fill(second, bare(older), false)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, err = fill(path, data, false)
	return err
}

// exchange renames next to path, and path to next if path exists and the file system supports RENAME_EXCHANGE.
func exchange(next, path string) error {
	err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err == unix.ENOENT || err == unix.EINVAL || err == unix.ENOSYS {
		return os.Rename(next, path)
	}
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: next, New: path, Err: err}
	}
	return nil
}

// Broken is an object whose record is missing, or has no version that can be read.
type Broken struct {
	ID  string
	Err error
}

// Spared is an object whose record was read from its second file, since the first is not there or cannot be read.
type Spared struct {
	ID  string
	Err error // why the first could not be read
	// Older says that the second file has the version before the last change. What that change was is not known.
	Older bool
}

// LoadAll reads every record, by ID: see Load.
func LoadAll[T any](r Records) (map[string]*T, []Broken, []Spared, error) {
	var mu sync.Mutex
	all := map[string]*T{}
	broken, spared, err := Load(r, func(id string, v *T) {
		mu.Lock()
		defer mu.Unlock()
		all[id] = v
	})
	if err != nil {
		return nil, nil, nil, err
	}
	return all, broken, spared, nil
}

// Load reads every record, and calls each with it, from several goroutines at a time. A record of a newer berthd is an
// error, a FormatError. A record of which no file could be read, for a reason that says nothing of its content
// (disk.Unread), is an error too, unless the records are Replaceable. After an error, nothing may be changed: a disk
// that fails returns no record at all, and no pod may be ended because of that.
func Load[T any](r Records, each func(id string, v *T)) ([]Broken, []Spared, error) {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	// With thousands of records, most of a start of berthd is this: on all processors.
	var mu sync.Mutex // guards broken and spared
	var broken []Broken
	var spared []Spared
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, e := range entries {
		id := e.Name()
		// Where a file system is mounted at the directory, fsck keeps there what it has saved.
		if !e.IsDir() || strings.HasPrefix(id, ".") || id == "lost+found" {
			continue
		}
		group.Go(func() error {
			v, b, s, err := load[T](r, id)
			if v != nil {
				each(id, v)
			}
			if b != nil || s != nil {
				mu.Lock()
				defer mu.Unlock()
			}
			if b != nil {
				broken = append(broken, *b)
			}
			if s != nil {
				spared = append(spared, *s)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(broken, func(a, b Broken) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(spared, func(a, b Spared) int { return strings.Compare(a.ID, b.ID) })
	return broken, spared, nil
}

// load reads one record, the second file if the first cannot be read. v is nil unless one of them was read.
func load[T any](r Records, id string) (v *T, _ *Broken, _ *Spared, _ error) {
	path := r.Path(id) + "/" + r.File
	v = new(T)
	_, err := read(path, v)
	if err == nil {
		return v, nil, nil, nil
	}
	var newer *FormatError
	if errors.As(err, &newer) || disk.Short(err) { // the second file may be older
		return nil, nil, nil, err
	}
	v = new(T) // nothing of the first
	isCopy, spareErr := read(path+spare, v)
	switch {
	case errors.As(spareErr, &newer) || disk.Short(spareErr):
		return nil, nil, nil, spareErr
	case spareErr == nil:
		return v, nil, &Spared{ID: id, Err: err, Older: !isCopy}, nil
	case !errors.Is(spareErr, os.ErrNotExist):
		err = errors.Join(err, spareErr)
	}
	if disk.Unread(err) && !r.Replaceable {
		const advice = "the log of the kernel says why: dmesg --level=err"
		return nil, nil, nil, fmt.Errorf("the record of %s cannot be read, which does not say that it is damaged: %w (%s)",
			id, err, advice)
	}
	return nil, &Broken{ID: id, Err: err}, nil, nil
}

// Doubled tells whether the second file of a record is one that Load could fall back to.
func (r Records) Doubled(id string) bool {
	path := filepath.Join(r.Path(id), r.File) + spare
	data, err := disk.ReadFile(path)
	if err == nil && len(data) == 0 {
		return false
	}
	if err == nil {
		_, err = unseal(path, data)
	}
	// What has a seal that fits is as it was written.
	return err == nil && (sealed(data) || json.Valid(data))
}

// lockWait is how long Exclusive waits: a process that was killed while it started another may live on in that one,
// lock and all, until its execve.
const lockWait = time.Second

// Lock holds a directory for this process until the returned function is called or the process ends. It fails where
// another process holds it, and goes on holding it for a second.
func Lock(dir string) (func(), error) {
	path := filepath.Join(dir, "lock")
	err := MakeDir(dir, 0o700)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if disk.Unwritable(err) {
		const advice = "the log of the kernel says why: dmesg --level=err"
		return nil, fmt.Errorf("the file system of %s takes no writes: %w (%s)", dir, err, advice)
	}
	if err != nil {
		return nil, err
	}
	return hold(f, dir)
}

// LockDir is Lock for a directory that is there and that nobody but root may open. It makes no file, for which a full
// disk has no room.
func LockDir(dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return hold(f, dir)
}

func hold(f *os.File, dir string) (func(), error) {
	if err := Exclusive(f); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is in use by another berthd (it holds %s)", dir, f.Name())
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// Exclusive locks an open file or directory with flock(2), for as long as it is open. Where another process holds
// the lock, and goes on holding it for a second, the error is unix.EWOULDBLOCK.
func Exclusive(f *os.File) error {
	deadline := time.Now().Add(lockWait)
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
}
