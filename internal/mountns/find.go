package mountns

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Above is the mount that a path without links is on, as the calling thread sees it.
func Above(path string) (*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil, err
	}
	var on *mountinfo.Info
	for _, m := range all {
		if on == nil || len(m.Mountpoint) >= len(on.Mountpoint) { // the last of those at one place covers the others
			on = m
		}
	}
	if on == nil {
		return nil, fmt.Errorf("%s is on no mount that this process sees: %w", path, fs.ErrNotExist)
	}
	return on, nil
}

// Shared tells whether what is mounted in a mount gets to its peers in other mount namespaces.
func Shared(m *mountinfo.Info) bool { return strings.Contains(m.Optional, "shared:") }
