package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/image/unpack"
)

// chainKey starts the key of a variant.
const chainKey = "chain:"

// A layer's tar may put a/b/c somewhere without an entry for a and a/b. Unpacked on top of its parents, as the layer was
// meant to be, c goes into the a/b that is there: with its owner and mode, and, where a is a link to x, into x/b. Layers
// here are unpacked without parents, so a and a/b were made anew, and overlayfs would show those. Where that makes a
// difference, the image gets a variant of the layer for its chain of parents: the same files, by hard links, with these
// directories put right.

// fix is one directory of a layer that must look otherwise.
type fix struct {
	path string // relative, where it is to be
	from string // relative, where the layer has it; differs from path for a directory that the parents have as a link
	like string // absolute, the directory below whose attributes it gets; empty: it stays as it is
}

// arrange replaces those layers of an image (base first, each with a reference of the caller's) which must be variants.
func (s *Store) arrange(ctx context.Context, layers []*layer) error {
	diffIDs := make([]digest.Digest, len(layers))
	for i, l := range layers {
		diffIDs[i] = digest.Digest(l.DiffID)
	}
	for i, l := range layers {
		if i == 0 || len(l.Implied) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fixes, err := s.fixes(l, s.below(layers[:i]))
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.DiffID, err)
		}
		if len(fixes) == 0 {
			continue
		}
		chain := identity.ChainID(append([]digest.Digest(nil), diffIDs[:i+1]...))
		v, err := s.variant(l, chainKey+chain.String(), fixes)
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.DiffID, diskError(err))
		}
		layers[i] = v
		s.mu.Lock()
		unused := s.unref(l)
		s.mu.Unlock()
		if err := s.trash(unused); err != nil {
			s.log.Warn("leftover of a pull is still there", "error", err)
		}
	}
	return nil
}

// below is what a layer is stacked upon.
func (s *Store) below(layers []*layer) view {
	r := &imageRecord{}
	for _, l := range layers {
		r.Layers = append(r.Layers, l.Key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{s.dirs(r)}
}

// fixes finds the implied directories of a layer that the layers below have otherwise.
func (s *Store) fixes(l *layer, below view) ([]fix, error) {
	if l.OpaqueRoot {
		return nil, nil
	}
	own := s.layerDir(l.N)
	implied := map[string]bool{}
	for _, dir := range l.Implied {
		implied[dir] = true
	}
	// mentioned tells whether the layer's tar has an entry for a directory, which then says how it looks.
	mentioned := func(dir string) bool {
		info, err := os.Lstat(filepath.Join(own, dir))
		return err == nil && info.IsDir() && !implied[dir]
	}
	var out []fix
	moved := map[string]string{}    // from where the layer has a directory to where it goes
	for _, dir := range l.Implied { // parents come before what is in them
		to := dir
		for up := path.Dir(dir); up != "."; up = path.Dir(up) {
			if target, ok := moved[up]; ok {
				to = path.Join(target, strings.TrimPrefix(dir, up))
				break
			}
		}
		if hidden(own, path.Dir(dir)) {
			continue // by an opaque directory of the layer itself
		}
		n, err := below.lookup(to)
		if err != nil {
			return nil, err
		}
		if n.kind == symlink {
			real, ok, err := below.resolve(to)
			if err != nil {
				return nil, err
			}
			if !ok || real == "" || real == to || strings.HasPrefix(real+"/", to+"/") {
				return nil, fmt.Errorf("%s is put into by the layer, and is a link that leads to no directory: %w",
					dir, errdefs.ErrInvalidArgument)
			}
			moved[dir] = real
			to = real
			if n, err = below.lookup(real); err != nil {
				return nil, err
			}
		}
		f := fix{path: to, from: dir}
		if n.kind == directory && !mentioned(to) {
			same, err := sameAttributes(n.path, filepath.Join(own, dir))
			if err != nil {
				return nil, err
			}
			if !same {
				f.like = n.path
			}
		}
		if moved[dir] != "" {
			// The directories on the way to it are implied by it.
			var ups []fix
			for up := path.Dir(to); up != "."; up = path.Dir(up) {
				n, err := below.lookup(up)
				if err != nil {
					return nil, err
				}
				if n.kind == directory && !mentioned(up) {
					ups = append([]fix{{path: up, from: up, like: n.path}}, ups...)
				}
			}
			out = append(out, ups...)
		} else if to != dir {
			f.from = to // it moved along with one above it
		}
		if f.like != "" || f.from != f.path {
			out = append(out, f)
		}
	}
	return out, nil
}

// hidden tells whether a directory of a layer, or one above it, is opaque.
func hidden(root, dir string) bool {
	for ; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if isOpaque(filepath.Join(root, dir)) {
			return true
		}
	}
	return false
}

// variant returns the layer's variant under a key, made if it is not there, with a reference for the caller.
func (s *Store) variant(l *layer, key string, fixes []fix) (*layer, error) {
	s.variants.Lock()
	defer s.variants.Unlock()
	s.mu.Lock()
	if v := s.layers[key]; v != nil {
		v.refs++
		s.mu.Unlock()
		return v, nil
	}
	s.mu.Unlock()
	n := s.newDir()
	rec := l.layerRecord
	rec.N, rec.Key, rec.Boot, rec.Implied = n, key, s.boot, nil
	dir := filepath.Join(s.root, "layers", n)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = makeLayerRoot(filepath.Join(dir, "fs"))
	}
	if err == nil {
		err = linkTree(s.layerDir(l.N), filepath.Join(dir, "fs"))
	}
	for _, f := range fixes {
		if err == nil {
			err = f.apply(filepath.Join(dir, "fs"))
		}
	}
	if err == nil {
		err = writeLayerRecord(dir, &rec)
	}
	if err != nil {
		return nil, errors.Join(err, s.removeDir(n))
	}
	v := &layer{layerRecord: rec, refs: 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, n)
	s.layers[key] = v
	return v, nil
}

func (f fix) apply(root string) error {
	to := filepath.Join(root, f.path)
	if f.from != f.path {
		if err := makeDirs(root, f.path); err != nil {
			return err
		}
		if err := merge(filepath.Join(root, f.from), to); err != nil {
			return err
		}
	} else if err := makeDirs(root, f.path); err != nil {
		return err
	}
	if f.like == "" {
		return nil
	}
	return fileattr.Copy(f.like, to)
}

// makeDirs makes a directory and those above it. What is there must be a directory: a link would lead away.
func makeDirs(root, name string) error {
	at := root
	for c := range strings.SplitSeq(name, "/") {
		at = filepath.Join(at, c)
		err := os.Mkdir(at, 0o755)
		if err == nil {
			err = os.Chmod(at, 0o755)
		} else if errors.Is(err, os.ErrExist) {
			var info os.FileInfo
			if info, err = os.Lstat(at); err == nil && !info.IsDir() {
				err = fmt.Errorf("%s is in the way of a directory: %w", name, errdefs.ErrInvalidArgument)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// merge moves what is in one directory into another, and removes it. Where both have a name that is not a directory in
// both, the moved one stays, since it is the one that the layer's parents lead to.
func merge(from, to string) error {
	if isOpaque(from) {
		if err := unix.Lsetxattr(to, unpack.OpaqueXattr, []byte("y"), 0); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if info, err := os.Lstat(dst); err == nil {
			if info.IsDir() && e.IsDir() {
				if err := merge(src, dst); err != nil {
					return err
				}
				continue
			}
			if err := os.RemoveAll(dst); err != nil {
				return err
			}
		}
		if err := os.Rename(src, dst); err != nil {
			return err
		}
	}
	return os.Remove(from)
}

// linkTree copies a tree: directories are made, everything else is linked.
func linkTree(from, to string) error {
	type dirTime struct {
		path string
		when [2]unix.Timespec
	}
	var times []dirTime
	err := filepath.WalkDir(from, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		if !e.IsDir() {
			return os.Link(at, dst)
		}
		if rel != "." {
			if err := os.Mkdir(dst, 0o700); err != nil {
				return err
			}
		}
		if err := fileattr.Copy(at, dst); err != nil {
			return err
		}
		if isOpaque(at) {
			if err := unix.Lsetxattr(dst, unpack.OpaqueXattr, []byte("y"), 0); err != nil {
				return err
			}
		}
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return err
		}
		times = append(times, dirTime{dst, [2]unix.Timespec{st.Atim, st.Mtim}})
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range times {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, t.path, t.when[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}

func sameAttributes(a, b string) (bool, error) {
	x, err := fileattr.Of(a)
	if err != nil {
		return false, err
	}
	y, err := fileattr.Of(b)
	if err != nil {
		return false, err
	}
	return x.Equal(y), nil
}
