package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const paxXattr = "SCHILY.xattr."

// LabelXattr is the SELinux label of a file. One in a layer is of the machine that built it: the node's policy decides
// how the files of layers are labelled.
const LabelXattr = "security.selinux"

// setAttributes gives an open file or directory its owner, mode, extended attributes and times, in that order: a change
// of owner clears the setuid bits and file capabilities.
func (l *layer) setAttributes(fd int, h *tar.Header) error {
	uid, gid, err := owner(h)
	if err != nil {
		return err
	}
	if err := l.chown(fd, "", uid, gid); err != nil {
		return fmt.Errorf("chown to %d:%d: %w", uid, gid, err)
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	err = l.setXattrs(h, func(key string, value []byte) error {
		if administrative(key) {
			return l.trusted(fd, key, value)
		}
		return unix.Fsetxattr(fd, key, value, 0)
	})
	if err != nil {
		return err
	}
	times := timesOf(h)
	if err := SetTimes(fd, &times); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// setAttributesAt does the same for what cannot be opened: links, devices, fifos.
func (l *layer) setAttributesAt(at int, base string, h *tar.Header) error {
	uid, gid, err := owner(h)
	if err != nil {
		return err
	}
	if err := l.chown(at, base, uid, gid); err != nil {
		return fmt.Errorf("chown to %d:%d: %w", uid, gid, err)
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(at, base, uint32(h.Mode&0o7777), 0); err != nil {
			return fmt.Errorf("chmod: %w", err)
		}
	}
	if hasXattrs(h) {
		fd, err := unix.Openat(at, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = l.setXattrs(h, func(key string, value []byte) error { return l.trusted(fd, key, value) })
		if err != nil {
			return err
		}
	}
	times := timesOf(h)
	if err := unix.UtimesNanoAt(at, base, times[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

func owner(h *tar.Header) (uid, gid int, err error) {
	// The highest number means "do not change" to the kernel.
	if h.Uid < 0 || h.Uid >= math.MaxUint32 || h.Gid < 0 || h.Gid >= math.MaxUint32 {
		return 0, 0, invalid("owner %d:%d", h.Uid, h.Gid)
	}
	return h.Uid, h.Gid, nil
}

func hasXattrs(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, paxXattr) {
			return true
		}
	}
	return false
}

func (l *layer) setXattrs(h *tar.Header, set func(key string, value []byte) error) error {
	if len(h.PAXRecords) == 0 {
		return nil
	}
	keys := make([]string, 0, len(h.PAXRecords))
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, paxXattr) {
			keys = append(keys, key)
		}
	}
	if err := l.entries(len(keys)); err != nil {
		return err
	}
	slices.Sort(keys)
	for _, record := range keys {
		key := strings.TrimPrefix(record, paxXattr)
		if key == LabelXattr {
			continue // containers/storage leaves it out too
		}
		if strings.HasPrefix(key, "trusted.overlay.") {
			return invalid("the extended attribute %q, which would redirect overlayfs", key)
		}
		err := set(key, []byte(h.PAXRecords[record]))
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOTSUP):
			l.notSupported(key)
		case errors.Is(err, unix.EPERM) && h.Typeflag != tar.TypeReg && strings.HasPrefix(key, "user."):
			l.notSupported(key) // xattr(7): user.* is for files and directories only
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
			return invalid("the extended attribute %q: %v", shortened(key), err)
		case errors.Is(err, unix.ENOSPC):
			// Some file systems keep a few kilobytes of them for each file, and say this of more.
			return fmt.Errorf("there is no room for the extended attribute %q of %d bytes: %w",
				key, len(h.PAXRecords[record]), err)
		default:
			return fmt.Errorf("set extended attribute %q: %w", key, err)
		}
	}
	return nil
}

// maxUnsupported is how many names Result.Unsupported has: a layer may have millions that no file system takes.
const maxUnsupported = 20

func (l *layer) notSupported(key string) {
	if len(l.unsupported) < maxUnsupported {
		l.unsupported[shortened(key)] = struct{}{}
	}
}

// administrative tells whether it takes the host's administrator (CAP_SYS_ADMIN) to set an attribute.
func administrative(key string) bool {
	return strings.HasPrefix(key, "trusted.") || strings.HasPrefix(key, "security.") && key != "security.capability"
}
