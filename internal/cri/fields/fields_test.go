package fields

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pages")

const (
	root = "../../.."
	// wholeNode has the tests that speak to berthd through its socket.
	wholeNode = "test/life"
)

var declared = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(t \*testing\.T\)`)

// tests are the folders of all tests of the project, by name.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
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
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestThePageIsOfThisList(t *testing.T) { isOfTheList(t, "cri-v1.md", page) }

func TestTheDoorsPageIsOfTheLists(t *testing.T) { isOfTheList(t, "doors.md", doorsPage) }

// isOfTheList compares a page below docs with what a list makes of it.
func isOfTheList(t *testing.T, name string, page func(where func(string) (string, error)) (string, error)) {
	t.Helper()
	all := tests(t)
	want, err := page(func(test string) (string, error) {
		// Where two folders have a test of one name, that of a whole node is meant, or the list says which: folder:Test.
		dir, name, chosen := strings.Cut(test, ":")
		if !chosen {
			name = test
		}
		dirs := all[name]
		switch {
		case chosen && slices.Contains(dirs, dir):
			return dir, nil
		case !chosen && len(dirs) == 1:
			return dirs[0], nil
		case !chosen && slices.Contains(dirs, wholeNode):
			return wholeNode, nil
		}
		return "", fmt.Errorf("the test %s is in %v, want one folder", test, dirs)
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs", name)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/%s is not of its list: go generate ./internal/cri/fields", name)
	}
}

func TestTheListHasNothingThatTheInterfaceHasNot(t *testing.T) {
	extra, err := unknown()
	if err != nil {
		t.Fatal(err)
	}
	if extra = slices.Concat(extra, unknownToPouch(), unknownToEarly()); len(extra) > 0 {
		t.Errorf("%v", extra)
	}
}

func TestEveryFieldThatWorksNamesATest(t *testing.T) {
	check := func(name string, v verdict) {
		switch v.state {
		case stateWorks:
			if len(v.tests) == 0 {
				t.Errorf("%s works, and no test shows it", name)
			}
		case stateRefused:
			if len(v.tests) == 0 || v.says == "" {
				t.Errorf("%s is refused without an error or a test", name)
			}
		case stateMeaningless:
			if v.says == "" {
				t.Errorf("%s has no meaning, and nobody knows why", name)
			}
		default:
			t.Errorf("%s has no state", name)
		}
	}
	for _, list := range []map[string]verdict{calls, pouchCalls, earlyCalls} {
		for name, v := range list {
			check(name, v)
		}
	}
	for _, list := range []map[string]map[string]verdict{fields, pouchFields, earlyFields} {
		for message, of := range list {
			for field, v := range of {
				check(message+"."+field, v)
			}
		}
	}
	for _, l := range isuladLimits {
		check(l.limit, l.here)
	}
	for message, tests := range responses {
		check(message, works(tests))
	}
}
