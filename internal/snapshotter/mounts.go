package snapshotter

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
)

// maxDirs is more directories than an image has layers.
const maxDirs = 500

// lowers returns the directories that the mount of a view reads from, top first: what Berth's own overlay has below the
// layers of its own. A mount of which that would not be all is refused.
func lowers(mounts []*types.Mount) ([]string, error) {
	if len(mounts) != 1 {
		return nil, refused("%d mounts for a view, which are not one", len(mounts))
	}
	m := mounts[0]
	if m.Target != "" {
		return nil, refused("a mount below the root, at %q", m.Target)
	}
	var dirs []string
	switch m.Type {
	case "bind":
		for _, option := range m.Options {
			if !slices.Contains([]string{"ro", "bind", "rbind"}, option) {
				return nil, refused("a bind mount with the option %q for a view", option)
			}
		}
		dirs = []string{m.Source}
	case "overlay":
		for _, option := range m.Options {
			value, isLower := strings.CutPrefix(option, "lowerdir=")
			switch {
			case isLower && dirs == nil:
				dirs = splitLowers(value)
			case option == "ro", option == "index=off", option == "metacopy=off", option == "redirect_dir=off":
			default:
				// Among them userxattr, with which directories are marked as opaque in another way, and upperdir.
				return nil, refused("an overlay mount with the option %q for a view", option)
			}
		}
	default:
		return nil, refused("a mount of the type %q, and Berth takes directories only (bind, overlay)", m.Type)
	}
	if len(dirs) == 0 || len(dirs) > maxDirs {
		return nil, refused("%d directories for a view", len(dirs))
	}
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0) {
			return nil, refused("the directory %q, which is not an absolute path without detours", dir)
		}
		if slices.Contains(dirs[:i], dir) {
			return nil, refused("the directory %s twice", dir)
		}
	}
	return dirs, nil
}

func refused(format string, args ...any) error {
	return fmt.Errorf("it answers with "+format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}

// splitLowers splits the value of lowerdir, in which a backslash comes before a colon that is part of a name.
func splitLowers(value string) []string {
	var dirs []string
	var dir strings.Builder
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\' && i+1 < len(value):
			i++
			dir.WriteByte(value[i])
		case c == ':':
			dirs = append(dirs, dir.String())
			dir.Reset()
		default:
			dir.WriteByte(c)
		}
	}
	return append(dirs, dir.String())
}
