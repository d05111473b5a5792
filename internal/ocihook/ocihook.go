// Package ocihook gives containers the hooks that files in directories of the node name, as CRI-O and Podman do. The
// format of the files is that of oci-hooks(5): a program, the stages at which it runs, and the containers that it runs
// for, by their annotations, their command and whether they have mounts. Files are read for each container, so a file
// that comes or goes holds for the next one.
package ocihook

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/common/pkg/hooks"
	hook "go.podman.io/common/pkg/hooks/1.0.0"
)

// file is a hook and where it is from.
type file struct {
	path string
	hook *hook.Hook
}

// read returns the hooks of directories, in the order in which they run: by the names of their files, without regard to
// case. A file takes the place of one of the same name in an earlier directory. A directory that is not there has none.
// A file that cannot be read as a hook, or whose program is not there, is an error: nobody knows which containers it is
// for.
func read(dirs []string) ([]file, error) {
	byName := map[string]file{}
	var errs []error
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			h, err := hooks.Read(path, nil)
			if errors.Is(err, hooks.ErrNoJSONSuffix) || gone(err, path) {
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
				continue
			}
			byName[entry.Name()] = file{path, h}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b file) int {
		return cmp.Compare(strings.ToLower(filepath.Base(a.path)), strings.ToLower(filepath.Base(b.path)))
	}), nil
}

// gone tells whether a file of a directory went while the directory was read.
func gone(err error, path string) bool {
	missing, ok := errors.AsType[*os.PathError](err)
	return ok && missing.Path == path && errors.Is(err, os.ErrNotExist)
}

// Inject adds to a specification the hooks of directories that are for its container. annotations are those that hooks
// ask for, mounts tells whether the container's configuration has mounts. ErrFailedPrecondition: a file is wrong.
func Inject(spec *specs.Spec, dirs []string, annotations map[string]string, mounts bool) error {
	files, err := read(dirs)
	if err != nil {
		return fmt.Errorf("hooks_dirs: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	for _, f := range files {
		match, err := f.hook.When.Match(spec, annotations, mounts)
		if err != nil {
			return fmt.Errorf("hooks_dirs: %s: %w: %w", f.path, err, errdefs.ErrFailedPrecondition)
		}
		if !match {
			continue
		}
		if spec.Hooks == nil {
			spec.Hooks = &specs.Hooks{}
		}
		for _, stage := range f.hook.Stages {
			at := stages(spec.Hooks)[stage] // the library knows no others
			*at = append(*at, f.hook.Hook)
		}
	}
	return nil
}

// stages are the lists of hooks by the names of their stages. A prestart hook runs at createRuntime, which has taken
// its place in the specification.
func stages(h *specs.Hooks) map[string]*[]specs.Hook {
	return map[string]*[]specs.Hook{
		"prestart": &h.CreateRuntime, "createRuntime": &h.CreateRuntime, "createContainer": &h.CreateContainer,
		"startContainer": &h.StartContainer, "poststart": &h.Poststart, "poststop": &h.Poststop,
	}
}

// Check says which files of directories are wrong.
func Check(dirs []string) error {
	_, err := read(dirs)
	return err
}
