package dirtree

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// linked is what a file with two names has.
func linked(ino int) *unix.Stat_t { return &unix.Stat_t{Dev: 1, Ino: uint64(ino), Nlink: 2} }

// TestTheFirstNameOfAFileIsKnown, and is that of no other file.
func TestTheFirstNameOfAFileIsKnown(t *testing.T) {
	l := Links[int]{Spend: func(int) error { return nil }}
	tree := New[int](openRoot(t, t.TempDir()))
	d := tree.Root().Below("d")
	for i, c := range []struct {
		in    *Dir[int]
		name  string
		st    *unix.Stat_t
		first string
	}{
		{d, "a", linked(7), ""}, {tree.Root(), "b", linked(7), "d/a"}, {d, "c", linked(8), ""},
		{d, "alone", &unix.Stat_t{Dev: 1, Ino: 9, Nlink: 1}, ""}, {d, "later", linked(9), ""},
		{d, "other device", &unix.Stat_t{Dev: 2, Ino: 7, Nlink: 2}, ""}, {d, "again", linked(7), "d/a"},
	} {
		first, name, err := l.First(c.in, c.name, c.st)
		if err != nil || first == nil && c.first != "" || first != nil && first.PathOf(name) != c.first {
			t.Errorf("%d: %v, %q, %v", i, first, name, err)
		}
	}
}

// TestFilesWithSeveralNamesCostWhatIsCounted: the count is what the memory for them is bounded by. They are in one
// directory, or each alone below directories that nothing else keeps. Seen to fail where only names are counted.
func TestFilesWithSeveralNamesCostWhatIsCounted(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, depth := range []int{0, 50} {
		spent := 0
		l := Links[struct{}]{Spend: func(n int) error { spent += n; return nil }}
		tree := New[struct{}](openRoot(t, t.TempDir()))
		before := heap()
		for i := range 300_000 / (depth + 1) {
			in := tree.Root()
			for range depth {
				in = in.Below(fmt.Sprint("d", i))
			}
			if first, _, err := l.First(in, fmt.Sprint("f", i), linked(i)); err != nil || first != nil {
				t.Fatal(first, err)
			}
		}
		took := heap() - before
		if t.Logf("%d deep: %d bytes, counted %d", depth, took, spent); took > uint64(spent) || took < uint64(spent)/3 {
			t.Errorf("%d deep: %d bytes, counted %d", depth, took, spent)
		}
		runtime.KeepAlive(l)
	}
}

// TestAnErrorOfTheCountIsThatOfTheFile, whether it is the file or its directory that is too much.
func TestAnErrorOfTheCountIsThatOfTheFile(t *testing.T) {
	refused := errors.New("refused")
	for allowed := range 3 {
		l := Links[int]{Spend: func(int) error {
			if allowed--; allowed < 0 {
				return refused
			}
			return nil
		}}
		tree := New[int](openRoot(t, t.TempDir()))
		if _, _, err := l.First(tree.Root().Below("a").Below("b"), "f", linked(1)); !errors.Is(err, refused) {
			t.Error(err)
		}
	}
}
