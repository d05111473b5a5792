package quota

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Root is the path of a container's root file system in a quota's key.
const Root = "/"

// Mount is what a container has mounted, as far as quotas care.
type Mount struct {
	Path     string // in the container, clean
	Source   string // on the node
	Dir      bool
	ReadOnly bool
	// OfImage: it is a volume that the container's image declares. The container writes there as to its root file system
	// if the client has said nothing about it.
	OfImage bool
}

// Group is what shares one ID and one limit.
type Group struct {
	Paths []string // in the container, sorted; Root is the root file system
	Limit uint64   // bytes; 0: what it takes is counted and not limited
	ID    ID
}

// HasRoot tells whether the root file system is in the group.
func (g Group) HasRoot() bool { return slices.Contains(g.Paths, Root) }

// CheckSizes refuses keys and sizes that mean nothing, whatever a container mounts.
func CheckSizes(sizes map[string]string) error {
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		if _, err := ParseSize(sizes[key]); err != nil {
			return fmt.Errorf("disk quota of %q: %w", key, err)
		}
		if key == each || key == all {
			continue
		}
		for p := range strings.SplitSeq(key, "&") {
			if !path.IsAbs(p) {
				return fmt.Errorf("disk quota of %q: a key is a path, paths with & between them, %s, or empty: %w", key, each,
					errdefs.ErrInvalidArgument)
			}
			if other, taken := seen[path.Clean(p)]; taken {
				return fmt.Errorf("disk quota: %q and %q both name %s: %w", other, key, path.Clean(p), errdefs.ErrInvalidArgument)
			}
			seen[path.Clean(p)] = key
		}
	}
	_, hasEach := sizes[each]
	if _, hasAll := sizes[all]; hasAll && hasEach {
		return fmt.Errorf("disk quota: %q and the empty key exclude one another: %w", each, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Keys that are no paths.
const (
	each = ".*" // the root file system and every mount, each for itself
	all  = ""   // the root file system and all mounts together
)

// Plan turns the sizes that a client gives into groups. What one of its paths names, the keys for all do not take.
// The latter leave out what is mounted read-only and what is a file. The root file system has rootSize where no key
// covers it (0: none), together with the volumes of the image that no key covers: otherwise an image could declare any
// directory as a volume, and what is written there would not be limited. The ID that the client gives is that of the
// root file system's group.
func Plan(sizes map[string]string, id ID, rootSize uint64, mounts []Mount) ([]Group, error) {
	if err := CheckSizes(sizes); err != nil {
		return nil, err
	}
	var groups []Group
	named := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		if key == each || key == all {
			continue
		}
		g := Group{}
		g.Limit, _ = ParseSize(sizes[key])
		for p := range strings.SplitSeq(key, "&") {
			p = path.Clean(p)
			if err := limitable(p, mounts); err != nil {
				return nil, fmt.Errorf("disk quota of %q: %w", key, err)
			}
			named[p] = true
			g.Paths = append(g.Paths, p)
		}
		slices.Sort(g.Paths)
		groups = append(groups, g)
	}
	var rest []string
	if !named[Root] {
		rest = append(rest, Root)
	}
	for _, m := range mounts {
		if !named[m.Path] && m.Dir && !m.ReadOnly {
			rest = append(rest, m.Path)
		}
	}
	slices.Sort(rest)
	if size, given := sizes[all]; given && len(rest) > 0 {
		bytes, _ := ParseSize(size)
		groups = append(groups, Group{Paths: rest, Limit: bytes})
	} else if size, given := sizes[each]; given {
		bytes, _ := ParseSize(size)
		for _, p := range rest {
			groups = append(groups, Group{Paths: []string{p}, Limit: bytes})
		}
	}
	at := slices.IndexFunc(groups, Group.HasRoot)
	if at < 0 && (rootSize > 0 || id != ID{}) {
		g := Group{Paths: []string{Root}, Limit: rootSize}
		for _, m := range mounts {
			if rootSize > 0 && m.OfImage && !named[m.Path] {
				g.Paths = append(g.Paths, m.Path)
			}
		}
		slices.Sort(g.Paths)
		groups = append(groups, g)
		at = len(groups) - 1
	}
	if at >= 0 {
		groups[at].ID = id
	}
	return groups, nil
}

func limitable(p string, mounts []Mount) error {
	if p == Root {
		return nil
	}
	for _, m := range mounts {
		if m.Path != p {
			continue
		}
		switch {
		case !m.Dir:
			return fmt.Errorf("%s is a file: %w", p, errdefs.ErrInvalidArgument)
		case m.ReadOnly:
			return fmt.Errorf("%s is read-only: %w", p, errdefs.ErrInvalidArgument)
		}
		return nil
	}
	return fmt.Errorf("%s is no mount of the container: %w", p, errdefs.ErrInvalidArgument)
}
