package mountns

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Above is the mount that a path without links is on, as the calling thread sees it.
func Above(path string) (*mountinfo.Info, error) {
	all, err := readMounts()
	if err != nil {
		return nil, err
	}
	on := above(all, path)
	if on == nil {
		return nil, fmt.Errorf("%s is on no mount that this process sees: %w", path, fs.ErrNotExist)
	}
	return on, nil
}

// above is the one of these mounts that a path without links is on; nil: none.
func above(all []*mountinfo.Info, path string) (on *mountinfo.Info) {
	for _, m := range all {
		// The last of those at one place covers the others.
		if in(path, m.Mountpoint) && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m
		}
	}
	return on
}

// in tells whether a path is a directory or in it.
func in(path, dir string) bool {
	rest, under := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return under && (rest == "" || rest[0] == '/')
}

// Shared tells whether what is mounted in a mount gets to its peers in other mount namespaces.
func Shared(m *mountinfo.Info) bool { return group(m) != "" }

// group is the peer group of a mount, as it is called in all mount namespaces; empty: the mount is not shared.
func group(m *mountinfo.Info) string {
	for field := range strings.FieldsSeq(m.Optional) {
		if id, shared := strings.CutPrefix(field, "shared:"); shared {
			return id
		}
	}
	return ""
}

// readMounts reads those that the calling thread sees.
func readMounts() ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}
