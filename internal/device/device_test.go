package device

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestNamesOfExtendedResources(t *testing.T) {
	for _, name := range []string{"vendor.com/gpu", "a/b", "vendor.com/gpu_1.x-y"} {
		if err := CheckResource(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "gpu", "vendor.com/", "/gpu", "vendor com/gpu",
		"kubernetes.io/x", "node.kubernetes.io/x",
		"requests.vendor.com/x", "a/b/c", "vendor.com/" + strings.Repeat("x", 64)} {
		if err := CheckResource(name); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDevicesOfOneNUMANodeGoTogether(t *testing.T) {
	d := func(id string, nodes ...int64) Device { return Device{ID: id, Healthy: true, NUMA: nodes} }
	two := []Device{d("a0", 0), d("a1", 0), d("b0", 1), d("b1", 1), d("b2", 1), d("x")}
	for _, c := range []struct {
		claim     string
		available []Device
		must      []string
		n         int
		near      []int64
		want      string
	}{
		{"the tightest node that suffices", two, nil, 2, nil, "a0 a1"},
		{"the only node that suffices", two, nil, 3, nil, "b0 b1 b2"},
		{"the node of what must be in it", two, []string{"b1"}, 2, nil, "b1 b0"},
		{"more than a node has", two, nil, 4, nil, "b0 b1 b2 a0"},
		{"devices without a node come last", two, nil, 6, nil, "b0 b1 b2 a0 a1 x"},
		{"near what another resource chose", two, nil, 2, []int64{1}, "b0 b1"},
		{"near, but a whole node is better", two, nil, 3, []int64{0}, "b0 b1 b2"},
		{"no nodes at all: as given", []Device{d("2"), d("1")}, nil, 1, nil, "2"},
		{"of several nodes each", []Device{d("a", 0), d("ab", 0, 1), d("b", 1)}, []string{"b"}, 2, nil, "b ab"},
		{"too few", two, nil, 7, nil, ""},
		{"must is not there", two, []string{"no"}, 2, nil, ""},
		{"must is too many", two, []string{"a0", "a1"}, 1, nil, ""},
		{"none", two, nil, 0, nil, ""},
	} {
		if got := strings.Join(Pick(c.available, c.must, c.n, c.near), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.claim, got, c.want)
		}
	}
}

func TestWhatAPodAsksForComesBack(t *testing.T) {
	asks := []Ask{{Container: "i", Kind: KindInit, Limits: map[string]int{"v.com/x": 1}},
		{Container: "c", Limits: map[string]int{"v.com/x": 2}}}
	text, err := Annotate(asks)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Asks(map[string]string{Annotation: text})
	if err != nil || len(got) != 2 || got[0].Kind != KindInit || got[1].Limits["v.com/x"] != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := Asks(map[string]string{"x": "y"}); got != nil || err != nil {
		t.Errorf("without: %v, %v", got, err)
	}
	for text, says := range map[string]string{
		"{":                                                 "unexpected",
		`[{"limits":{}}]`:                                   "container is empty",
		`[{"container":"a"},{"container":"a"}]`:             "twice",
		`[{"container":"a","kind":"x"}]`:                    "kind",
		`[{"container":"a","limits":{"gpu":1}}]`:            "gpu",
		`[{"container":"a","limits":{"v.com/x":-1}}]`:       "-1",
		`[{"container":"a","limits":{"v.com/x":10000000}}]`: "10000000",
	} {
		_, err := Asks(map[string]string{Annotation: text})
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPickNeverRepeatsADevice(t *testing.T) {
	var all []Device
	for i := range 40 {
		all = append(all, Device{ID: string(rune('A' + i)), NUMA: []int64{int64(i % 3), int64(i % 5)}[:i%3]})
	}
	for n := range 41 {
		got := Pick(all, nil, n, nil)
		slices.Sort(got)
		if len(got) != n || len(slices.Compact(got)) != n {
			t.Errorf("%d: %v", n, got)
		}
	}
}
