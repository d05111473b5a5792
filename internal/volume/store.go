package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/state"
)

// What stands in a volume's directory.
const (
	recordFile = "volume.json"
	dataDir    = "data"    // the volume itself
	fillingDir = "filling" // what becomes data
)

// Record is a volume as it stands on disk. Its JSON is the format of <root>/volumes/<name>/volume.json.
type Record struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
}

// Config is what a Store is made of.
type Config struct {
	Dir string // absolute; made where it is missing
	// Discard takes a directory out of sight at once and removes it, now or later, whatever happens.
	Discard func(dir string) error
	Log     *slog.Logger
}

// Store is the node's named volumes. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	records state.Records

	mu      sync.Mutex // guards volumes and their users
	volumes map[string]*volume
}

type volume struct {
	rec Record // immutable
	// op is held while the volume is filled or removed.
	op    *semaphore.Weighted
	users map[string]struct{}
	made  bool // its directory is there
}

// InUseError is why a volume is not removed. It is errdefs.ErrFailedPrecondition.
type InUseError struct {
	Name  string
	Users []string // sorted
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("volume %s is in use by container %s", e.Name, strings.Join(e.Users, ", "))
}

// Unwrap gives the error its code.
func (e *InUseError) Unwrap() error { return errdefs.ErrFailedPrecondition }

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// CheckName refuses what cannot name a volume: a name is up to 128 letters, digits, dots, hyphens and underscores,
// and begins with a letter or digit.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf(
			"volume name %q: a name is up to 128 letters, digits, dots, hyphens and underscores, and begins with a "+
				"letter or digit: %w", name, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Open reads the volumes of a directory, and removes those whose making did not come to its end.
func Open(cfg Config) (*Store, error) {
	records := state.Records{Dir: cfg.Dir, File: recordFile, Replaceable: true}
	s := &Store{cfg: cfg, records: records, volumes: map[string]*volume{}}
	// Volumes hold whatever containers write, setuid programs included: nobody but root may reach them
	// but through a mount.
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	loaded, broken, spared, err := state.LoadAll[Record](s.records)
	if err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	for _, o := range spared {
		cfg.Log.Warn("the newest version of a record is spoilt, and its second file was read", "volume", o.ID, "error", o.Err)
	}
	for _, b := range broken {
		loaded[b.ID] = &Record{}
	}
	for name, rec := range loaded {
		if err := s.load(name, *rec); err != nil {
			cfg.Log.Error("a volume cannot be used", "volume", name, "error", err)
		}
	}
	return s, nil
}

func (s *Store) load(name string, rec Record) error {
	if err := CheckName(name); err != nil { // it is somebody else's, and stays
		return err
	}
	info, err := os.Lstat(s.data(name))
	if errors.Is(err, os.ErrNotExist) {
		s.cfg.Log.Warn("remove a volume that was never finished", "volume", name)
		return s.cfg.Discard(s.records.Path(name))
	}
	if err != nil {
		return err
	}
	if rec.Name != name {
		// A power failure has torn the record. What is in the volume matters, and it is there.
		s.cfg.Log.Warn("write the record of a volume again", "volume", name)
		rec = Record{Name: name, CreatedAt: info.ModTime()}
		if err := s.records.Save(name, rec); err != nil {
			return err
		}
	}
	v := newVolume(rec)
	v.made = true
	s.volumes[name] = v
	return s.discardFilling(name)
}

func newVolume(rec Record) *volume {
	return &volume{rec: rec, op: semaphore.NewWeighted(1), users: map[string]struct{}{}}
}

func (s *Store) data(name string) string    { return filepath.Join(s.records.Path(name), dataDir) }
func (s *Store) filling(name string) string { return filepath.Join(s.records.Path(name), fillingDir) }

// Path is where the volume of a name is, whether there is one or not.
func (s *Store) Path(name string) string { return s.data(name) }

// Path is Store.Path of a store that is not open yet, in a directory.
func Path(dir, name string) string { return (&Store{records: state.Records{Dir: dir}}).data(name) }

// AddUser enters a user of a volume that was found in the user's own record.
func (s *Store) AddUser(name, user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[name]
	if v == nil {
		return fmt.Errorf("volume %q: %w", name, errdefs.ErrNotFound)
	}
	v.users[user] = struct{}{}
	return nil
}

// Use returns the directory of a volume, and makes it if there is none. A volume that is empty and has no other user
// is filled again; one that has content is left as it is. The volume is not removed until Release of the same user.
func (s *Store) Use(ctx context.Context, name, user string, f Fill) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	v, err := s.acquire(ctx, name, true)
	if err != nil {
		return "", err
	}
	defer v.op.Release(1)
	if err := s.make(ctx, v, f); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v.users[user] = struct{}{}
	return s.data(name), nil
}

// Create makes an empty volume, which the first container that uses it fills. One that is there already is
// errdefs.ErrAlreadyExists.
func (s *Store) Create(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	v, err := s.acquire(ctx, name, true)
	if err != nil {
		return err
	}
	defer v.op.Release(1)
	s.mu.Lock()
	there := v.made
	s.mu.Unlock()
	if there {
		return fmt.Errorf("volume %q: %w", name, errdefs.ErrAlreadyExists)
	}
	return s.make(ctx, v, Fill{})
}

// make has the directory of a volume made or filled; one that cannot be made is forgotten. The caller holds v.op.
func (s *Store) make(ctx context.Context, v *volume, f Fill) error {
	name := v.rec.Name
	err := s.ensure(ctx, v, f)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.made = true
		return nil
	}
	if _, statErr := os.Lstat(s.data(name)); errors.Is(statErr, os.ErrNotExist) {
		if discardErr := s.discard(name); discardErr != nil {
			s.cfg.Log.Error("remove a volume that could not be made", "volume", name, "error", discardErr)
		}
	}
	return fmt.Errorf("volume %s: %w", name, err)
}

// acquire holds the operation lock of a volume that is still one of the store's.
func (s *Store) acquire(ctx context.Context, name string, create bool) (*volume, error) {
	for {
		s.mu.Lock()
		v := s.volumes[name]
		if v == nil && create {
			v = newVolume(Record{Name: name, CreatedAt: time.Now()})
			s.volumes[name] = v
		}
		s.mu.Unlock()
		if v == nil {
			return nil, fmt.Errorf("volume %q: %w", name, errdefs.ErrNotFound)
		}
		if err := v.op.Acquire(ctx, 1); err != nil {
			return nil, fmt.Errorf("volume %s: another operation holds it: %w", name, err)
		}
		s.mu.Lock()
		current := s.volumes[name] == v
		s.mu.Unlock()
		if current {
			return v, nil
		}
		v.op.Release(1)
	}
}

// ensure makes or fills the directory of a volume, if that is to be done. The caller holds v.op.
func (s *Store) ensure(ctx context.Context, v *volume, f Fill) error {
	name := v.rec.Name
	_, err := os.Lstat(s.data(name))
	isNew := errors.Is(err, os.ErrNotExist)
	switch {
	case isNew:
		if err := s.records.Save(name, v.rec); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		s.mu.Lock()
		used := len(v.users) > 0
		s.mu.Unlock()
		if used {
			return nil
		}
		if empty, err := isEmpty(s.data(name)); err != nil || !empty {
			return err
		}
		source, err := f.source(ctx)
		if err != nil || source == nil {
			return err
		}
		source.Close() // it is of use if nothing is in it, too: the volume gets its owner and mode
	}
	if err := s.discardFilling(name); err != nil {
		return err
	}
	filling := s.filling(name)
	err = Populate(ctx, filling, f)
	empty := true
	if err == nil {
		empty, err = isEmpty(filling)
	}
	if err == nil && !empty { // after a pull, all of the image's layers may be waiting for the disk
		err = syncAll(filling)
	}
	if err == nil {
		// An empty directory is replaced, one that is not stays. (os.Rename replaces none.)
		if err = unix.Rename(filling, s.data(name)); err != nil {
			err = &os.LinkError{Op: "rename", Old: filling, New: s.data(name), Err: err}
		}
	}
	if err != nil {
		return errors.Join(err, s.discardFilling(name))
	}
	return nil
}

// syncAll brings all of the directory's file system to the disk: a volume that a power failure has emptied
// would not be filled again by a container that finds a part of the content. It is a variable for tests.
var syncAll = func(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", dir, err)
	}
	return nil
}

func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	if len(names) > 0 {
		return false, nil
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return true, err
}

func (s *Store) discardFilling(name string) error {
	if _, err := os.Lstat(s.filling(name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return s.cfg.Discard(s.filling(name))
}

// discard removes a volume. The caller holds its op, so that nobody begins to use the volume meanwhile, but not s.mu:
// on a full disk, all of the volume's files are removed here.
func (s *Store) discard(name string) error {
	if err := s.cfg.Discard(s.records.Path(name)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes, name)
	return nil
}

// Release ends the use of all volumes by a user.
func (s *Store) Release(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		delete(v.users, user)
	}
}

// Remove removes a volume with what is in it. One that is used is not: the error is an *InUseError.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	v, err := s.acquire(ctx, name, false)
	if err != nil {
		return err
	}
	defer v.op.Release(1)
	s.mu.Lock()
	users := v.userList()
	s.mu.Unlock()
	if len(users) > 0 {
		return &InUseError{Name: name, Users: users}
	}
	if err := s.discard(name); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

func (v *volume) userList() []string { return slices.Sorted(maps.Keys(v.users)) }

// Get returns one volume.
func (s *Store) Get(name string) (*model.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[name]
	if v == nil || !v.made {
		return nil, fmt.Errorf("volume %q: %w", name, errdefs.ErrNotFound)
	}
	return s.model(v), nil
}

// List returns all volumes, by name.
func (s *Store) List() []*model.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*model.Volume, 0, len(s.volumes))
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		if v := s.volumes[name]; v.made {
			list = append(list, s.model(v))
		}
	}
	return list
}

func (s *Store) model(v *volume) *model.Volume {
	return &model.Volume{Name: v.rec.Name, Path: s.data(v.rec.Name), CreatedAt: v.rec.CreatedAt, Containers: v.userList()}
}
