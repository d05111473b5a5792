package namespace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Empty leaves nothing in the calling thread's mount namespace, which the thread has unshared before, but an empty
// tmpfs. It becomes read-only once fill, if there is one, has put something into it. dir is an existing directory
// of the namespace as it was. options are the tmpfs' own.
//
// What is started from here costs no copy of the host's mounts, of which each pod has some.
func Empty(dir, options string, fill func() error) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"part from the host's mounts", func() error { return unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "") }},
		{"mount an empty directory", func() error { return unix.Mount("tmpfs", dir, "tmpfs", flags, options) }},
		{"enter it", func() error { return unix.Chdir(dir) }},
		{"make it the root", func() error { return unix.PivotRoot(".", ".") }},
		{"remove the host's mounts", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"leave the old directory", func() error { return unix.Chdir("/") }},
		{"fill it", func() error {
			if fill == nil {
				return nil
			}
			return fill()
		}},
		{"make it read-only", func() error { return unix.Mount("", "/", "", flags|unix.MS_REMOUNT|unix.MS_RDONLY, options) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("make an empty mount namespace: %s: %w", step.name, err)
		}
	}
	return nil
}
