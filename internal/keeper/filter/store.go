package filter

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/singleflight"

	"berth/internal/disk"
	"berth/internal/state"
)

// Store has the compiled seccomp profiles of this node's containers. Each is kept in files, for at least as long as a
// container has it: <key>.bpf, and the profile for the libcontainer that must confine a further process of the
// container, twice.
type Store struct {
	dir     string
	used    func() map[string]bool // keys that containers have
	log     *slog.Logger
	flights singleflight.Group

	mu     sync.Mutex
	cached map[string]*Filter   // nil: it cannot be compiled beforehand
	failed map[string]time.Time // when the machine last could not compile a profile
}

// failedKnown is how long a profile is not compiled again that the machine could not compile, for want of memory for
// example: a start would else wait for the compiler each time, for as long as it may run.
const failedKnown = time.Minute

// NewStore returns the store in a directory, which exists. used returns the keys of the profiles that containers have:
// their files stay.
func NewStore(dir string, used func() map[string]bool, log *slog.Logger) *Store {
	return &Store{dir: dir, used: used, log: log}
}

// maxFilters bounds what is kept in memory, and on disk of what no container has, on a node that never stops inventing
// profiles.
const maxFilters = 64

// Key names a profile by what it says.
func Key(p *specs.LinuxSeccomp) (string, error) {
	b, err := json.Marshal(p)
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:]), err
}

// Get compiles a profile, or finds it compiled: nil where libcontainer must see to the profile itself.
func (f *Store) Get(ctx context.Context, key string, p *specs.LinuxSeccomp) (*Filter, error) {
	f.mu.Lock()
	compiled, ok := f.cached[key]
	at, failed := f.failed[key]
	f.mu.Unlock()
	if ok || failed && time.Since(at) < failedKnown {
		return compiled, nil
	}
	// One for all that wait; it is not this caller's alone.
	v, err, _ := f.flights.Do(key, func() (any, error) { return f.compile(context.WithoutCancel(ctx), key, p) })
	if err != nil {
		return nil, err
	}
	return v.(*Filter), nil
}

func (f *Store) compile(ctx context.Context, key string, p *specs.LinuxSeccomp) (*Filter, error) {
	profile, err := specconv.SetupSeccomp(p)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	compiled, err := Compile(ctx, profile)
	if err != nil {
		// libcontainer says what is wrong with it, or does what only it can.
		if !errors.Is(err, ErrListener) {
			const event = "a seccomp profile cannot be compiled in advance: libcontainer sets up its containers, in more time"
			f.log.Warn(event, "key", key, "error", err)
		}
		if errors.Is(err, ErrListener) || errors.Is(err, errProfile) {
			f.keep(key, nil)
		} else {
			f.fail(key)
		}
		return nil, nil
	}
	if err := f.sweep(maxFilters); err != nil {
		return nil, err
	}
	b, err := json.Marshal(profile)
	if err == nil {
		b, err = state.Seal(b)
	}
	if err == nil {
		err = disk.WriteOrOverwrite(f.path(key, programSuffix), compiled.Bytes())
		for _, suffix := range profileFiles {
			err = errors.Join(err, disk.WriteOrOverwrite(f.path(key, suffix), b))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keep compiled seccomp profile: %w", err)
	}
	f.keep(key, compiled)
	return compiled, nil
}

const programSuffix = ".bpf"

// profileFiles end the names of the two files that a profile is in.
var profileFiles = [2]string{".json", ".json.spare"}

func (f *Store) path(key, suffix string) string { return filepath.Join(f.dir, key+suffix) }

func (f *Store) keep(key string, compiled *Filter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cached == nil || len(f.cached) >= maxFilters {
		f.cached = map[string]*Filter{}
	}
	f.cached[key] = compiled
	delete(f.failed, key)
}

func (f *Store) fail(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil || len(f.failed) >= maxFilters {
		f.failed = map[string]time.Time{}
	}
	f.failed[key] = time.Now()
}

// Sum is the checksum of a filter's file.
func Sum(b []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// Load finds the filter of a container that runs, by its key and the checksum of its file (empty: not known). One that
// is spoilt is compiled again: a further process of the container has a filter of the same profile as the first, or
// does not begin.
func (f *Store) Load(key, sum string) (*Filter, error) {
	f.mu.Lock()
	compiled := f.cached[key]
	f.mu.Unlock()
	if compiled != nil {
		return compiled, nil
	}
	b, err := os.ReadFile(f.path(key, programSuffix))
	if err == nil && sum != "" && Sum(b) != sum {
		err = errSpoiltFilter
	}
	if err == nil {
		compiled, err = Parse(b)
	}
	if err != nil {
		if compiled, err = f.again(key, err); err != nil {
			return nil, err
		}
	} else if _, err := f.Profile(key); err != nil {
		f.log.Warn("the profile of a seccomp filter is lost; the filter is there", "key", key, "error", err)
	}
	f.keep(key, compiled)
	return compiled, nil
}

var errSpoiltFilter = errors.New("the compiled seccomp profile is not as it was written")

// again compiles a profile of which the filter cannot be read, for the given reason. The compiler's output is not the
// same each time, so it is not written in the place of one of which records have the checksum.
func (f *Store) again(key string, reason error) (*Filter, error) {
	profile, err := f.Profile(key)
	if err != nil {
		return nil, errors.Join(reason, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), againWait)
	defer cancel()
	compiled, err := Compile(ctx, profile)
	if err != nil {
		return nil, errors.Join(reason, err)
	}
	f.log.Warn("a compiled seccomp profile was spoilt or gone, and is compiled again", "key", key, "error", reason)
	return compiled, nil
}

// againWait bounds the compilation of a filter that was spoilt.
const againWait = 10 * time.Second

// Profile is what a filter was made of, from either of its files. The other is written again where it is not the same.
func (f *Store) Profile(key string) (*configs.Seccomp, error) {
	p := &configs.Seccomp{}
	var found [len(profileFiles)][]byte
	var errs []error
	for i, suffix := range profileFiles {
		path := f.path(key, suffix)
		b, err := os.ReadFile(path)
		if err == nil {
			err = state.Unseal(path, b)
		}
		if err == nil {
			err = json.Unmarshal(b, p)
		}
		if errs = append(errs, err); err == nil {
			found[i] = b
		}
	}
	for i, b := range found {
		if b == nil {
			continue
		}
		if err := errs[1-i]; err != nil {
			// It is tried again when the profile is next needed.
			_ = disk.WriteOrOverwrite(f.path(key, profileFiles[1-i]), b)
		}
		return p, nil
	}
	return nil, fmt.Errorf("seccomp profile: %w", errors.Join(errs...))
}

// sweep removes the files of profiles that no container has, when there are more than some of them.
func (f *Store) sweep(spare int) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil || len(entries) <= 2*spare {
		return err
	}
	// Under the lock: a container that names its filter later finds it gone, and has it compiled again.
	f.mu.Lock()
	defer f.mu.Unlock()
	used := f.used()
	for _, e := range entries {
		key, _, _ := strings.Cut(e.Name(), ".")
		if used[key] {
			continue
		}
		// It must not be found compiled without its files.
		delete(f.cached, key)
		err = errors.Join(err, os.Remove(filepath.Join(f.dir, e.Name())))
	}
	return err
}
