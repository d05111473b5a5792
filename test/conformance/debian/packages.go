package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Packages are the packages under one directory: <dir>/<name>_<version>_<arch>.deb, each unpacked once into tree.
type Packages struct {
	dir  string
	tree string // the contents of all packages, as after an installation without scripts
	have map[string]bool
}

// Open uses the packages that dir holds and downloads what is missing into it. Close removes what was unpacked.
func Open(dir string) (*Packages, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	tree, err := os.MkdirTemp("", "berth-debian-")
	if err != nil {
		return nil, err
	}
	return &Packages{dir: dir, tree: tree, have: map[string]bool{}}, nil
}

// Close removes the unpacked packages; the downloaded ones stay.
func (p *Packages) Close() error { return os.RemoveAll(p.tree) }

// Add unpacks packages, and downloads those that the directory does not hold.
func (p *Packages) Add(ctx context.Context, names ...string) error {
	var missing []string
	for _, name := range names {
		if !p.have[name] && p.file(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		if err := p.download(ctx, missing); err != nil {
			return err
		}
	}
	for _, name := range names {
		if p.have[name] {
			continue
		}
		file := p.file(name)
		if file == "" {
			return fmt.Errorf("apt-get did not download %s", name)
		}
		if _, err := run(ctx, p.dir, "dpkg-deb", "-x", file, p.tree); err != nil {
			return err
		}
		p.have[name] = true
	}
	return nil
}

func (p *Packages) file(name string) string {
	found, err := filepath.Glob(filepath.Join(p.dir, name+"_*.deb"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func (p *Packages) download(ctx context.Context, names []string) error {
	args := append([]string{"-q", "download"}, names...)
	_, err := run(ctx, p.dir, "apt-get", args...)
	if err == nil {
		return nil
	}
	// A machine that was just installed knows no packages yet, and an old list names versions that are gone.
	if _, updateErr := run(ctx, p.dir, "apt-get", "-q", "update"); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	_, err = run(ctx, p.dir, "apt-get", args...)
	return err
}

var library = regexp.MustCompile(`^\s*(?:Pre)?Depends: ((?:lib|zlib)[^\s:]*)`)

// libraries are the libraries' packages that the given packages depend on directly.
func (p *Packages) libraries(ctx context.Context) ([]string, error) {
	args := []string{"depends", "--important"}
	for name := range p.have {
		args = append(args, name)
	}
	out, err := run(ctx, p.dir, "apt-cache", args...)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(out) {
		if m := library.FindStringSubmatch(line); m != nil && !p.have[m[1]] {
			names = append(names, m[1])
		}
	}
	return names, nil
}

func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
