package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/config"
	"berth/internal/disk"
)

// WithoutLinks is a copy of a configuration whose root and state are the paths that their symbolic links lead to, as
// where /var/lib/berth is a link to a directory of a larger disk. berthd uses these alone: the kernel's table of mounts
// has no others, and libcontainer refuses a root file system behind a link. A link may lead to no directory that the
// configuration may not name. The error joins a *config.KeyError for each key that is wrong.
func WithoutLinks(c *config.Config) (*config.Config, error) {
	resolved := *c
	var errs []error
	for _, dir := range []struct {
		key  string
		path *string
	}{{"root", &resolved.Root}, {"state", &resolved.State}} {
		path, err := resolve(*dir.path)
		if disk.Unwritable(err) { // who writes there says so
			continue
		}
		if err != nil {
			errs = append(errs, &config.KeyError{Key: dir.key, Problem: err.Error()})
			continue
		}
		*dir.path = path
	}
	if len(errs) == 0 {
		errs = append(errs, resolved.Validate())
	}
	return &resolved, errors.Join(errs...)
}

// resolve follows the links of a path, whose last parts may not be there yet.
func resolve(path string) (string, error) {
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if target, err := os.Readlink(path); err == nil {
		return "", fmt.Errorf("%s is a link to %s, which is not there", path, target)
	}
	above, err := resolve(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(above, filepath.Base(path)), nil
}
