package quota

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{
		"10g": 10 << 30, "512m": 512 << 20, "1k": 1024, "1": 1024, "1500": 2048, "2T": 2 << 40, "1.5g": 3 << 29,
		"10GB": 10 << 30, "1gib": 1 << 30,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "0", "-1", "-1g", "x", "10x", "g", "1 0g", "0x10"} {
		if got, err := ParseSize(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q is %d, %v", bad, got, err)
		}
	}
}

func TestIDs(t *testing.T) {
	for text, want := range map[string]ID{
		"": {}, "0": {}, "-1": {Any: true}, "16777216": {Number: 16777216}, "4294967294": {Number: 4294967294},
	} {
		if got, err := model.ParseQuotaID(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"1", "16777215", "-2", "4294967295", "4294967296", "x", "1e9", " 0"} {
		if got, err := model.ParseQuotaID(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q is %v, %v", bad, got, err)
		}
	}
}

func TestPlans(t *testing.T) {
	mounts := []Mount{
		{Path: "/abc", Dir: true}, {Path: "/def", Dir: true}, {Path: "/ro", Dir: true, ReadOnly: true}, {Path: "/etc/file"},
	}
	for _, c := range []struct {
		claim   string
		sizes   map[string]string
		id      ID
		handler uint64
		want    string // paths=KiB of each group; # before the one with the ID
	}{
		{"nothing", nil, ID{}, 0, ""},
		{"the handler's", nil, ID{}, 3072, "/=3"},
		{"an ID alone counts", nil, ID{Any: true}, 0, "#/=0"},
		{"an ID and the handler's", nil, ID{Any: true}, 3072, "#/=3"},
		{"the root file system", map[string]string{"/": "5k"}, ID{Any: true}, 3072, "#/=5"},
		{"one mount", map[string]string{"/abc": "5k"}, ID{}, 0, "/abc=5"},
		{"one mount, and the handler's", map[string]string{"/abc/": "5k"}, ID{}, 3072, "/abc=5 /=3"},
		{"two share", map[string]string{"/&/abc": "5k"}, ID{Number: MinID}, 3072, "#/,/abc=5"},
		{"mounts share", map[string]string{"/def&/abc": "5k"}, ID{}, 0, "/abc,/def=5"},
		{"each", map[string]string{".*": "5k"}, ID{Any: true}, 0, "#/=5 /abc=5 /def=5"},
		{"each, but for one", map[string]string{".*": "5k", "/abc": "7k"}, ID{}, 0, "/abc=7 /=5 /def=5"},
		{"all together", map[string]string{"": "5k"}, ID{Any: true}, 3072, "#/,/abc,/def=5"},
		{"all together, but for some", map[string]string{"": "5k", "/&/def": "7k"}, ID{Any: true}, 0, "#/,/def=7 /abc=5"},
	} {
		groups, err := Plan(c.sizes, c.id, c.handler, mounts)
		if err != nil {
			t.Errorf("%s: %v", c.claim, err)
			continue
		}
		var got []string
		for _, g := range groups {
			mark := ""
			if g.ID != (ID{}) {
				mark = "#"
				if g.ID != c.id {
					t.Errorf("%s: ID %v", c.claim, g.ID)
				}
			}
			got = append(got, fmt.Sprintf("%s%s=%d", mark, strings.Join(g.Paths, ","), g.Limit>>10))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.claim, got, c.want)
		}
	}
	for claim, sizes := range map[string]map[string]string{
		"no mount":              {"/none": "1k"},
		"a file":                {"/etc/file": "1k"},
		"what is read-only":     {"/ro": "1k"},
		"a relative path":       {"abc": "1k"},
		"another pattern":       {"/a.*": "1k"},
		"an empty part":         {"/&": "1k"},
		"twice in a key":        {"/abc&/abc": "1k"},
		"twice":                 {"/abc": "1k", "/&/abc/": "1k"},
		"each and all":          {"": "1k", ".*": "1k"},
		"no size":               {"/": ""},
		"a size that is no one": {"/": "much"},
	} {
		if groups, err := Plan(sizes, ID{}, 0, mounts); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", claim, groups, err)
		}
	}
}

// TestAHandlersLimitHoldsForTheVolumesOfAnImage that the client says nothing about, and a client's own limit of the
// root file system holds for that alone. Seen to fail when such a volume had no limit.
func TestAHandlersLimitHoldsForTheVolumesOfAnImage(t *testing.T) {
	mounts := []Mount{
		{Path: "/abc", Dir: true}, {Path: "/var/db", Dir: true, OfImage: true}, {Path: "/a", Dir: true, OfImage: true},
	}
	for _, c := range []struct {
		claim   string
		sizes   map[string]string
		id      ID
		handler uint64
		want    []Group
	}{
		{"no key", nil, ID{}, 3072, []Group{{Paths: []string{"/", "/a", "/var/db"}, Limit: 3072}}},
		{"an ID", nil, ID{Any: true}, 3072, []Group{{Paths: []string{"/", "/a", "/var/db"}, Limit: 3072, ID: ID{Any: true}}}},
		{"no limit", nil, ID{Any: true}, 0, []Group{{Paths: []string{"/"}, ID: ID{Any: true}}}},
		{"a key for one", map[string]string{"/a": "1k"}, ID{}, 3072,
			[]Group{{Paths: []string{"/a"}, Limit: 1024}, {Paths: []string{"/", "/var/db"}, Limit: 3072}}},
		{"a key for the root", map[string]string{"/": "1k"}, ID{}, 3072, []Group{{Paths: []string{"/"}, Limit: 1024}}},
	} {
		if groups, err := Plan(c.sizes, c.id, c.handler, mounts); err != nil || !reflect.DeepEqual(groups, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", c.claim, groups, err, c.want)
		}
	}
}
