package poddir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// Group is the group of a pod's volumes: its fsGroup.
type Group struct {
	ID int64
	// OnRootMismatch: a volume whose root directory is the group's already is left as it is.
	OnRootMismatch bool
}

// Give gives a volume of the daemon to the group, as a kubelet does for the fsGroup of a pod: the group owns all that
// is in it, and may read and write it, and what is made in its directories later is the group's, too. Containers may
// change the volume meanwhile: no link leads out of it, and neither does a mount.
func (g Group) Give(ctx context.Context, volume string) error {
	root, err := openVolume(volume)
	if err != nil {
		return err
	}
	defer root.Close()
	if g.OnRootMismatch {
		var st unix.Stat_t
		if err := unix.Fstat(int(root.Fd()), &st); err != nil {
			return &fs.PathError{Op: "stat", Path: volume, Err: err}
		}
		if g.has(&st, writable) {
			return nil
		}
	}
	return g.give(ctx, root, writable)
}

// What a group may do with the files of a volume, as the bits of a mode.
const (
	readable uint32 = 0o440
	writable uint32 = 0o660
)

// has says whether a file is the group's already. A link has no mode of its own.
func (g Group) has(st *unix.Stat_t, may uint32) bool {
	if int64(st.Gid) != g.ID {
		return false
	}
	want := g.mode(st, may)
	return st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Mode&want == want
}

// mode is what the mode of a file gets for the group.
func (g Group) mode(st *unix.Stat_t, may uint32) uint32 {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return may | 0o110 | unix.S_ISGID
	}
	return may
}

// give gives a directory to the group with all that is in it. The root comes last: as long as it is not the group's,
// not all is.
func (g Group) give(ctx context.Context, root *os.File, may uint32) error {
	tree := dirtree.New[struct{}](root)
	defer tree.Close()
	err := tree.Walk(ctx, dirtree.Walk[struct{}]{
		Changing: true, NamesOnly: true,
		Visit: func(in *dirtree.Dir[struct{}], fd int, name string, _ *unix.Stat_t) (*dirtree.Dir[struct{}], error) {
			isDir, err := g.giveEntry(fd, name, may)
			if err != nil {
				return nil, fmt.Errorf("%s: give %q to group %d: %w", root.Name(), in.PathOf(name), g.ID, err)
			}
			if isDir {
				return in.Below(name), nil
			}
			return nil, nil
		},
	})
	if err != nil {
		return err
	}
	if _, err := g.giveFile(int(root.Fd()), may); err != nil {
		return fmt.Errorf("%s: give it to group %d: %w", root.Name(), g.ID, err)
	}
	return nil
}

// giveEntry gives an entry of an open directory to the group, and says whether it is a directory. What is gone, or is
// mounted there, is none of the volume.
func (g Group) giveEntry(in int, name string, may uint32) (isDir bool, err error) {
	fd, err := unix.Openat2(in, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return g.giveFile(fd, may)
}

// giveFile gives an open file to the group, which may be open as a path only. A change of the group takes bits from its
// mode, which are put back.
func (g Group) giveFile(fd int, may uint32) (isDir bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	if g.has(&st, may) {
		return isDir, nil
	}
	if err := unix.Fchownat(fd, "", -1, int(g.ID), unix.AT_EMPTY_PATH); err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return false, nil
	}
	return isDir, unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), st.Mode&0o7777|g.mode(&st, may))
}

// openVolume opens the directory of a volume.
func openVolume(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
