package debian

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"berth/internal/registrytest"
)

// libraryDirs are where Debian's packages keep libraries; Debian's dynamic loader looks in all of them.
var libraryDirs = []string{"lib/*-linux-gnu*", "usr/lib/*-linux-gnu*", "lib64", "usr/lib64", "lib", "usr/lib"}

// Read is the content of a file of the packages.
func (p *Packages) Read(name string) ([]byte, error) {
	file, err := p.find(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// find looks for a file at its path, and where it went when /bin, /sbin and /lib became links into /usr.
func (p *Packages) find(name string) (string, error) {
	for _, candidate := range []string{name, path.Join("usr", name), strings.TrimPrefix(name, "usr/")} {
		file, err := filepath.EvalSymlinks(filepath.Join(p.tree, candidate))
		if err != nil {
			continue
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("no package has %s", name)
}

// Programs are the given programs (bin/busybox, usr/sbin/nginx), each at its path, and every library that they need, at
// paths where the dynamic loader looks. Packages of libraries are added as needed. The directories are not among
// the entries.
func (p *Packages) Programs(ctx context.Context, names ...string) ([]registrytest.Entry, error) {
	files := map[string]string{} // path in the image to path in the tree
	queue := make([]string, 0, len(names))
	for _, name := range names {
		file, err := p.find(name)
		if err != nil {
			return nil, err
		}
		files[name] = file
		queue = append(queue, file)
	}
	for len(queue) > 0 {
		needs, err := p.needs(queue[0])
		if err != nil {
			return nil, err
		}
		queue = queue[1:]
		for _, need := range needs {
			at, file, err := p.library(ctx, need)
			if err != nil {
				return nil, err
			}
			if _, ok := files[at]; !ok {
				files[at] = file
				queue = append(queue, file)
			}
		}
	}
	return entries(files)
}

// needs are what an ELF file asks for: sonames, and the path of its dynamic loader.
func (p *Packages) needs(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			data, err := io.ReadAll(prog.Open())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			needs = append(needs, strings.TrimRight(string(data), "\x00"))
		}
	}
	return needs, nil
}

// library finds one, adding packages until there is none left to add. at is its path in the image.
func (p *Packages) library(ctx context.Context, name string) (at, file string, err error) {
	for {
		if at, file, ok := p.locate(name); ok {
			return at, file, nil
		}
		more, err := p.libraries(ctx)
		if err != nil {
			return "", "", err
		}
		if len(more) == 0 {
			return "", "", errors.New("no package has " + name)
		}
		if err := p.Add(ctx, more...); err != nil {
			return "", "", err
		}
	}
}

func (p *Packages) locate(name string) (at, file string, ok bool) {
	for _, pattern := range libraryDirs {
		found, _ := filepath.Glob(filepath.Join(p.tree, pattern, path.Base(name)))
		for _, link := range found {
			file, err := filepath.EvalSymlinks(link)
			if err != nil {
				continue
			}
			if strings.HasPrefix(name, "/") { // the loader is run from exactly this path
				return name[1:], file, true
			}
			at, err := filepath.Rel(p.tree, link)
			if err != nil {
				continue
			}
			return at, file, true
		}
	}
	return "", "", false
}

func entries(files map[string]string) ([]registrytest.Entry, error) {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names) // the same packages make the same image
	var out []registrytest.Entry
	for _, name := range names {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		out = append(out, registrytest.File(name, 0o755, string(data)))
	}
	return out, nil
}
