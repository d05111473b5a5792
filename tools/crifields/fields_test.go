package crifields

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/testindex"
)

var update = flag.Bool("update", false, "write the pages")

// wholeNode has the tests that speak to berthd through its socket.
const wholeNode = "test/life"

func TestThePageIsOfThisList(t *testing.T) { isOfTheList(t, "cri-v1.md", page) }

func TestTheOlderAPIsPageIsOfTheLists(t *testing.T) { isOfTheList(t, "older-apis.md", olderPage) }

// isOfTheList compares a page below docs with what a list makes of it.
func isOfTheList(t *testing.T, name string, page func(where func(string) (string, error)) (string, error)) {
	t.Helper()
	index, err := testindex.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	want, err := page(func(test string) (string, error) { return index.Folder(test, wholeNode) })
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
		t.Errorf("docs/%s is not of its list: go generate ./tools/crifields", name)
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
