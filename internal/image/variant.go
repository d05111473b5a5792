package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/disk"
	"berth/internal/image/layertar"
	"berth/internal/image/unpack"
	"berth/internal/image/variant"
	"berth/internal/jail"
	"berth/internal/jail/wire"
)

// chainKey starts the key of a variant.
const chainKey = "chain:"

// stagingDir is where a variant of a layer is made, in the layer's own directory: hard links do not cross mounts, and
// the child that makes it may see no more than that directory. One that is left by a crash is set aside by Open.
const stagingDir = "variant"

// resolveVariants replaces those layers of an image (base first, each with a reference of the caller's) which must be
// variants: see package variant. It returns what they were made from, with the caller's references.
func (s *Store) resolveVariants(ctx context.Context, now *inForce, layers []*layer) (origins []*layer, err error) {
	diffIDs := make([]digest.Digest, len(layers))
	for i, l := range layers {
		diffIDs[i] = digest.Digest(l.DiffID)
	}
	left := now.Limits.Lookups
	for i, l := range layers {
		if i == 0 || l.Remote != nil {
			continue
		}
		root, err := s.takesRoot(l, layers[:i])
		if err != nil {
			return origins, fmt.Errorf("layer %s: %w", l.DiffID, err)
		}
		if !l.Depends && !root {
			continue
		}
		if err := ctx.Err(); err != nil {
			return origins, err
		}
		chain := identity.ChainID(append([]digest.Digest(nil), diffIDs[:i+1]...))
		v, err := s.variant(ctx, now, fitting{l, layers[:i], root}, chainKey+chain.String(), &left)
		if err != nil {
			return origins, fmt.Errorf("layer %s: %w", l.DiffID, disk.Exhausted(err))
		}
		if v == nil {
			continue
		}
		layers[i] = v
		origins = append(origins, l)
	}
	return origins, nil
}

// takesRoot tells whether a layer has a root directory that has to look as that of the layers below, and does not.
// Earlier versions did not keep whether a layer says how its root looks. Of their layers, those say so whose root does
// not look as unpacking makes it.
func (s *Store) takesRoot(l *layer, below []*layer) (bool, error) {
	if l.OwnRoot || l.isNothing() {
		return false, nil
	}
	s.index.mu.Lock()
	under := s.dirs.stack(below)[0]
	s.index.mu.Unlock()
	return variant.TakesRoot(s.dirs.fs(l.N), under)
}

// fitting is a layer of an image, and what a variant of it has to fit.
type fitting struct {
	*layer
	below []*layer // base first
	root  bool     // the root directory has to look as that of the layers below
}

// variant returns the layer's variant under a key, made if it is not there, with a reference for the caller; nil: the
// layer is right as it is. left are the lookups that the image may still take.
func (s *Store) variant(ctx context.Context, now *inForce, l fitting, key string, left *uint64) (*layer, error) {
	release, err := s.alone(ctx, l.layer)
	if err != nil {
		return nil, err
	}
	defer release()
	s.index.mu.Lock()
	if v := s.index.layers[key]; v != nil {
		v.refs++
		s.index.mu.Unlock()
		return v, nil
	}
	s.index.mu.Unlock()

	home := s.dirs.home(l.N)
	result, lookups, err := s.makeVariant(ctx, now, l, home, *left)
	*left = max(*left-min(*left, lookups), 1) // 0 would be no limit
	if err == nil && result == nil {
		return nil, nil
	}
	// What was made moves to a number of its own, whole or not.
	n, madeErr := s.newHome(s.dirs.make)
	if madeErr != nil { // the next variant of the layer, or the next start, sets aside what was made
		return nil, errors.Join(err, madeErr)
	}
	rec := l.layerRecord
	rec.N, rec.Key, rec.Boot, rec.Depends = n, key, s.boot, false
	e := os.Rename(filepath.Join(home, stagingDir), s.dirs.fs(n))
	if err == nil || !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err == nil {
		rec.Inodes += result.Inodes
		rec.Bytes += result.Bytes
		err = s.dirs.writeRecord(n, &layerFile{layerRecord: rec})
	}
	if err != nil {
		return nil, errors.Join(err, s.removeDir(context.Background(), n))
	}
	v := &layer{layerRecord: rec, refs: 1}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	delete(s.index.busy, n)
	s.index.layers[key] = v
	if s.index.doubtful[l.N] { // the variant has the same files, by hard links
		s.index.doubtful[n] = true
	}
	return v, nil
}

// alone waits until nobody else makes a variant of a layer: all are made in one place.
func (s *Store) alone(ctx context.Context, l *layer) (release func(), err error) {
	for {
		s.index.mu.Lock()
		other := s.index.variants[l.N]
		if other == nil {
			done := make(chan struct{})
			s.index.variants[l.N] = done
			s.index.mu.Unlock()
			return func() {
				s.index.mu.Lock()
				delete(s.index.variants, l.N)
				s.index.mu.Unlock()
				close(done)
			}, nil
		}
		s.index.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// makeVariant makes the variant of a layer in the layer's own directory; nil: it needs none. used are the lookups
// that it took, of which it may be no more than lookups.
func (s *Store) makeVariant(
	ctx context.Context, now *inForce, l fitting, home string, lookups uint64,
) (_ *variant.Result, used uint64, err error) {
	if err := s.dirs.within(l.N); err != nil {
		return nil, used, err
	}
	implied, err := readImplied(home)
	if err == nil {
		err = s.setAside(home)
	}
	if err != nil {
		return nil, used, err
	}
	s.index.mu.Lock()
	dirs := s.dirs.stack(l.below)
	s.index.mu.Unlock()
	files := l.Inodes + uint64(len(implied))
	for _, b := range l.below {
		files += b.Inodes
	}
	v := &varying{unpacker: now.unpacker, implied: implied, root: l.root, lookups: lookups}
	defer v.close()
	if err := v.open(home, dirs); err != nil {
		return nil, used, err
	}
	// Longer than any honest child takes: nobody else waits for this layer's variants for ever because of one that
	// hangs.
	ctx, stop := context.WithTimeoutCause(ctx, now.unpacker.patience+time.Duration(min(files, 1e9))*time.Millisecond,
		fmt.Errorf("making the variant took too long, and was given up: %w", errdefs.ErrResourceExhausted))
	defer stop()
	return v.make(ctx)
}

// varying is a variant that three children make, of which none can change a layer by what another layer has made of
// it: see the roles of package variant.
type varying struct {
	*unpacker
	implied unpack.Implied
	root    bool       // see fitting
	lookups uint64     // the most that the first child may take
	home    *os.File   // the layer's directory
	lower   []jail.Dir // the directories of the layers below, top first
	calls   func(*wire.Call, *os.File) ([]byte, error)
}

// open opens the directories that the children get.
func (v *varying) open(home string, below []string) (err error) {
	if v.home, err = os.Open(home); err != nil {
		return err
	}
	for _, dir := range below {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		v.lower = append(v.lower, jail.Dir{File: f, ReadOnly: true})
	}
	v.calls, err = attributeCalls(v.home)
	return err
}

func (v *varying) close() {
	if v.home != nil {
		v.home.Close()
	}
	for _, d := range v.lower {
		d.File.Close()
	}
}

// run has a child do a task.
func (v *varying) run(ctx context.Context, spec jail.Spec, result any) error {
	spec.Memory, spec.Calls = variant.Memory(v.implied), v.calls
	c, err := v.children.Start(ctx, spec)
	if err != nil {
		return err
	}
	return c.Wait(result)
}

// make plans, makes and checks the variant. The result is nil where the layer is right as it is.
func (v *varying) make(ctx context.Context) (_ *variant.Result, used uint64, err error) {
	var placement variant.Placement
	err = v.run(ctx, jail.Spec{
		Role: variant.PlanRole, Task: variant.PlanTask{Implied: v.implied, Root: v.root, Lookups: v.lookups},
		Dirs: v.lower, MaxAnswer: variant.Answer(v.implied),
	}, &placement)
	used = placement.Lookups
	if err != nil || !placement.Needed {
		return nil, used, err
	}
	result := &variant.Result{}
	// The child may not remove the file that says which layer this is, nor the directory that containers mount.
	keep := []string{layerFileName, layerFS}
	task := variant.MakeTask{Implied: v.implied, Placement: &placement, Layer: layerFS, Name: stagingDir}
	err = v.run(ctx, jail.Spec{
		Role: variant.MakeRole, Task: task, Dirs: []jail.Dir{{File: v.home, Keep: keep}}, FileSize: v.limits.Layer.Bytes,
	}, result)
	if err == nil {
		// The mark of a sync may come at any time. One that the child has made counts after a loss of images.db
		// alone, for this layer.
		err = onlyHas(v.home, append(keep, stagingDir, syncedFile, doubtfulFile, layertar.FileName))
	}
	if err != nil {
		return nil, used, err
	}
	made, err := openat(v.home, stagingDir)
	if err != nil {
		return nil, used, err
	}
	defer made.Close()
	if !placement.Moved {
		return result, used, nil
	}
	dirs := append([]jail.Dir{{File: made, ReadOnly: true}}, v.lower...)
	err = v.run(ctx, jail.Spec{Role: variant.CheckRole, Task: v.implied, Dirs: dirs}, nil)
	return result, used, err
}

// onlyHas makes sure that a child has left nothing else in a directory that was its.
func onlyHas(dir *os.File, names []string) error {
	return dirtree.Names(int(dir.Fd()), func(name string) error {
		if !slices.Contains(names, name) {
			return fmt.Errorf("its child has left %.100q beside it: %w", name, errdefs.ErrInternal)
		}
		return nil
	})
}

// openat opens a directory in another one, whatever a child has put into its place.
func openat(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// setAside moves away what a crash has left of a variant in a layer's directory. It gets a number that Collect does
// not know, and goes with the other leftovers.
func (s *Store) setAside(home string) error {
	staged := filepath.Join(home, stagingDir)
	if _, err := os.Lstat(staged); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	n, err := s.newHome(func(n string) error {
		if err := os.Rename(staged, s.dirs.home(n)); err != nil {
			return err
		}
		return s.dirs.made(n)
	})
	s.index.release(n)
	return err
}

// readImplied reads what a layer depends on: it is kept beside the layer only, and not in memory.
func readImplied(dir string) (unpack.Implied, error) {
	rec, err := readLayerRecord(dir)
	if err != nil {
		return nil, err
	}
	if len(rec.ImpliedPaths) == 0 {
		return rec.Implied, nil
	}
	// As the first version wrote it: parents come before what is in them.
	var list unpack.Implied
	var at []string
	for _, dir := range rec.ImpliedPaths {
		names := strings.Split(dir, "/")
		same := 0
		for same < len(names) && same < len(at) && names[same] == at[same] {
			same++
		}
		for ; same < len(names); same++ {
			list = list.Append(unpack.ImpliedDir{Depth: same + 1, Name: names[same], Implied: same == len(names)-1})
		}
		at = names
	}
	return list, nil
}
