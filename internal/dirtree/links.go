package dirtree

import "golang.org/x/sys/unix"

const (
	// linkMemory is what Links keeps for a file beside its name, and dirMemory for a directory that is only kept because
	// such a file is in it or below it: with a map's free places, somewhat less than this.
	linkMemory = 128
	dirMemory  = 160
)

// Links knows the files of a tree that have more than one name, each by the first that was seen. How many there are is
// for whoever has made the tree to say, so the user bounds their memory.
type Links[T any] struct {
	// Spend is called with the bytes that are about to be kept. Its error is that of First, and nothing more is kept.
	Spend func(bytes int) error

	first map[inode]place[T]
	kept  map[*Dir[T]]struct{}
}

type inode struct{ dev, ino uint64 }

// place is a name in a directory: a path would take too much memory for each of a million links.
type place[T any] struct {
	in   *Dir[T]
	name string
}

// First returns the directory and the name of a file that were seen first. The directory is nil if these are they, or
// if the file has no other name.
func (l *Links[T]) First(in *Dir[T], name string, st *unix.Stat_t) (first *Dir[T], firstName string, err error) {
	if st.Nlink < 2 {
		return nil, "", nil
	}
	key := inode{uint64(st.Dev), st.Ino}
	if p, ok := l.first[key]; ok {
		return p.in, p.name, nil
	}
	if l.first == nil {
		l.first, l.kept = map[inode]place[T]{}, map[*Dir[T]]struct{}{}
	}
	for d := in; d.parent != nil; d = d.parent {
		if _, ok := l.kept[d]; ok {
			break
		}
		if err := l.Spend(dirMemory + len(d.name)); err != nil {
			return nil, "", err
		}
		l.kept[d] = struct{}{}
	}
	if err := l.Spend(linkMemory + len(name)); err != nil {
		return nil, "", err
	}
	l.first[key] = place[T]{in, name}
	return nil, "", nil
}
