// Package testindex finds the folder of each test and fuzzer of the project, and has the tests that compare documents
// with the code.
package testindex

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\((?:t \*testing\.T|f \*testing\.F)\)`)

// Index is the folders of tests, by the tests' names.
type Index map[string][]string

// Read looks through all folders of the project, whose root is given.
func Read(root string) (Index, error) {
	out := Index{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && path != root {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllSubmatch(text, -1) {
			out[string(m[1])] = append(out[string(m[1])], dir)
		}
		return nil
	})
	return out, err
}

// Folder is where a test is. Where several folders have one of its name, that in prefer is meant, or the name says
// which: folder:Test.
func (x Index) Folder(test, prefer string) (string, error) {
	dir, name, chosen := strings.Cut(test, ":")
	if !chosen {
		name = test
	}
	dirs := x[name]
	switch {
	case chosen && slices.Contains(dirs, dir):
		return dir, nil
	case !chosen && len(dirs) == 1:
		return dirs[0], nil
	case !chosen && slices.Contains(dirs, prefer):
		return prefer, nil
	}
	return "", fmt.Errorf("the test %s is in %v, want one folder", test, dirs)
}

// Links are tests, named in one string, as links of a page in docs.
func (x Index) Links(tests, prefer string) (string, error) {
	var out []string
	for _, test := range strings.Fields(tests) {
		dir, err := x.Folder(test, prefer)
		if err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("[%s](../%s)", test[strings.IndexByte(test, ':')+1:], dir))
	}
	return strings.Join(out, ", "), nil
}
