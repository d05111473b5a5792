package mountns

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// attributes are those of a mount that a later change of it on the node does not bring to its peers here, by their
// names in mountinfo.
var attributes = map[string]uint64{
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV,
	"noexec": unix.MOUNT_ATTR_NOEXEC, "nosymfollow": unix.MOUNT_ATTR_NOSYMFOLLOW,
}

// Mirror gives the mounts here the attributes that the node's have by now. It is for programs that take mounts from
// Berth's own namespace: OCI runtimes. The stage takes those of the node itself. It reads all mounts, of which there
// are some for each pod.
//
// The error says which of the paths, which are those that the program mounts, is another one here than on the node:
// what the node mounts in a mount that is not shared is not here.
func Mirror(paths []string) error {
	if node == nil {
		return nil
	}
	for try := 0; ; try++ {
		var theirs []*mountinfo.Info
		err := OnNode(func() (err error) {
			theirs, err = readMounts()
			return err
		})
		if err != nil {
			return fmt.Errorf("the node's mounts: %w", err)
		}
		ours, err := readMounts()
		if err != nil {
			return err
		}
		// One that came or went between the two is no difference.
		if err := differences(theirs, ours, paths); err == nil {
			return mirror(theirs, ours)
		} else if try == 2 {
			return err
		}
	}
}

func mirror(theirs, ours []*mountinfo.Info) error {
	byPlace := map[string]*mountinfo.Info{}
	for _, m := range theirs {
		byPlace[place(m)] = m // the last one at a place covers the others
	}
	for _, m := range ours {
		their := byPlace[place(m)]
		if their == nil || Own(m.Mountpoint) {
			continue
		}
		had, has := attributesOf(m), attributesOf(their)
		if had == has {
			continue
		}
		if err := give(m, has&^had, had&^has); err != nil {
			return fmt.Errorf("give the mount %s the attributes that the node's has: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// differences tells which path has other mounts here than on the node.
func differences(theirs, ours []*mountinfo.Info, paths []string) error {
	here := map[string]bool{}
	for _, m := range ours {
		here[place(m)] = true
	}
	for _, path := range paths {
		if Own(path) {
			continue
		}
		their, our := above(theirs, path), above(ours, path)
		if their != nil && our != nil && here[place(their)] && place(their) != place(our) {
			return fmt.Errorf("%s is on a mount at %s that is no more on the node, but still in the mount namespace of "+
				"Berth's own, where the container's mounts come from: the node has unmounted it while it, or a mount above "+
				"it, was not shared", path, our.Mountpoint)
		}
		for _, m := range theirs {
			// Pins of mount namespaces are not everywhere. Who mounts the whole node needs none of its mounts in particular.
			below := path != "/" && m.FSType != "nsfs" && in(m.Mountpoint, path) && !Own(m.Mountpoint)
			if (m == their || below) && !here[place(m)] {
				return fmt.Errorf("%s: the node's mount at %s is not in the mount namespace of Berth's own, where the "+
					"container's mounts come from: a mount above it is not shared on the node", path, m.Mountpoint)
			}
		}
	}
	return nil
}

// place is where a mount is, and of what.
func place(m *mountinfo.Info) string {
	return fmt.Sprintf("%d:%d %s %s", m.Major, m.Minor, m.Root, m.Mountpoint)
}

func attributesOf(m *mountinfo.Info) (set uint64) {
	for name := range strings.SplitSeq(m.Options, ",") {
		set |= attributes[name]
	}
	return set
}

func give(m *mountinfo.Info, set, clear uint64) error {
	fd, err := unix.Open(m.Mountpoint, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // it was unmounted meanwhile, or another mount covers a directory above
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: m.Mountpoint, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return os.NewSyscallError("statx", err)
	}
	if int(st.Mnt_id) != m.ID {
		return nil // another mount covers it
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set, Attr_clr: clear})
	return os.NewSyscallError("mount_setattr", err)
}
