package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/namespace"
)

const mappedDir = "mapped" // mount points of mapped layers, only while the overlay is being mounted

// mappedLayers are bind mounts of layers that show mapped owners. The overlay keeps clones of them, so they go as soon
// as it is mounted.
type mappedLayers struct {
	dir   string
	paths []string
}

func (l *mappedLayers) release() {
	for _, path := range l.paths {
		_ = detach(path)
		_ = os.Remove(path)
	}
	_ = os.Remove(l.dir)
}

// mapLayers needs attached mounts: before Linux 6.15 an overlay takes no detached ones.
func mapLayers(o Options, lowers []string) (*mappedLayers, error) {
	l := &mappedLayers{dir: filepath.Join(o.Dir, mappedDir)}
	ns, err := openUserNamespace(o)
	if err != nil {
		return l, err
	}
	defer ns.Close()
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return l, err
	}
	for i, lower := range lowers {
		at := filepath.Join(l.dir, strconv.Itoa(i))
		if err := os.MkdirAll(at, 0o700); err != nil {
			return l, err
		}
		l.paths = append(l.paths, at)
		if err := bindMapped(lower, at, int(ns.Fd())); err != nil {
			return l, fmt.Errorf("layer %s: %w", lower, err)
		}
	}
	return l, nil
}

func bindMapped(from, at string, ns int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns), Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func openUserNamespace(o Options) (*os.File, error) {
	if o.UserNS != "" {
		return os.Open(o.UserNS)
	}
	return namespace.NewUser(namespace.UserMappings{UIDs: o.UIDs, GIDs: o.GIDs})
}

// HostID is the host's ID for one in the user namespace; one that is not mapped, and any without mappings, stays.
func HostID(mappings []model.IDMapping, id int) int {
	for _, m := range mappings {
		if offset := id - int(m.ContainerID); offset >= 0 && offset < int(m.Length) {
			return int(m.HostID) + offset
		}
	}
	return id
}
