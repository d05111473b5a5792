package verifier

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Program is a verifier.
type Program struct {
	Name string // of its file
	path string
}

// Programs are the verifiers in a directory, in the order of their names. It is an error if there is none, if there are
// more than most (negative: any number), or if others than root can change one.
func Programs(dir string, most int) ([]Program, error) {
	info, err := trusted(dir)
	if err != nil {
		return nil, fmt.Errorf("the directory of image verifiers: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("the directory of image verifiers: %s is no directory", dir)
	}
	entries, err := os.ReadDir(dir) // which sorts them
	switch {
	case err != nil:
		return nil, fmt.Errorf("the directory of image verifiers: %w", err)
	case len(entries) == 0:
		return nil, fmt.Errorf("%s has no image verifier", dir)
	case most >= 0 && len(entries) > most:
		return nil, fmt.Errorf("%s has %d image verifiers, more than image_verifier.max_verifiers allows, which is %d", dir,
			len(entries), most)
	}
	programs := make([]Program, len(entries))
	for i, e := range entries {
		programs[i] = Program{Name: e.Name(), path: filepath.Join(dir, e.Name())}
		info, err := trusted(programs[i].path)
		switch {
		case err != nil:
			return nil, fmt.Errorf("image verifier: %w", err)
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			return nil, fmt.Errorf("image verifier: %s is no executable file", programs[i].path)
		}
	}
	return programs, nil
}

// maxLinks is how many symbolic links a path may go through, as in the kernel.
const maxLinks = 40

// trusted describes the file at an absolute path. It is an error if others than root can write to the file, or can put
// another one in its place: each directory and each symbolic link on the way has to be root's, and nobody else may
// write to it. In a directory with the sticky bit, others cannot replace what is root's.
func trusted(path string) (fs.FileInfo, error) {
	at, rest := "/", path
	for links := 0; ; {
		info, err := os.Lstat(at)
		if err != nil {
			return nil, err
		}
		link := info.Mode()&fs.ModeSymlink != 0
		if err := rootsOwn(at, info); err != nil {
			return nil, err
		}
		if link {
			if links++; links > maxLinks {
				return nil, &fs.PathError{Op: "lstat", Path: path, Err: syscall.ELOOP}
			}
			target, err := os.Readlink(at)
			if err != nil {
				return nil, err
			}
			rest = target + "/" + rest
			at = filepath.Dir(at)
			if filepath.IsAbs(target) {
				at = "/"
			}
		}
		name := ""
		for name == "" || name == "." {
			if rest = strings.TrimLeft(rest, "/"); rest == "" {
				return info, nil
			}
			name, rest, _ = strings.Cut(rest, "/")
		}
		at = filepath.Join(at, name) // at has no link, so that .. is its parent
	}
}

// rootsOwn refuses what others than root can change.
func rootsOwn(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("no owner is known of " + path)
	}
	if st.Uid != 0 {
		return fmt.Errorf("%s belongs to user %d, and has to belong to root", path, st.Uid)
	}
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if mode := info.Mode(); mode&fs.ModeSymlink == 0 && mode.Perm()&0o022 != 0 && !sticky {
		return fmt.Errorf("%s has the mode %#o: others than root may write to it", path, mode.Perm())
	}
	return nil
}
