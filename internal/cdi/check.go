package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	raw "tags.cncf.io/container-device-interface/specs-go"
)

const (
	// maxFile bounds a specification file. Those of nodes with hundreds of devices have some hundred KiB.
	maxFile = 16 << 20
	// The kernel keeps 12 bits of a major number and 20 of a minor one, and drops the others.
	maxMajor, maxMinor = 1<<12 - 1, 1<<20 - 1
	// noID is the user and group ID that means "no change" to the kernel.
	noID = math.MaxUint32
)

// validator checks of a parsed file what the library does not: it relies on lists without empty elements,
// and passes numbers on that a runtime would cut.
type validator struct{}

func (validator) Validate(spec *raw.Spec) error {
	if err := checkEdits(&spec.ContainerEdits); err != nil {
		return err
	}
	for _, d := range spec.Devices {
		if err := checkEdits(&d.ContainerEdits); err != nil {
			return fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	return nil
}

// setValidator gives the library our validator, once: it has one for the whole process.
var setValidator = sync.OnceFunc(func() { cdi.SetSpecValidator(validator{}) })

func checkEdits(e *raw.ContainerEdits) error {
	return errors.Join(
		all("deviceNodes", e.DeviceNodes, checkDeviceNode), all("hooks", e.Hooks, notNil), all("mounts", e.Mounts, notNil),
		all("netDevices", e.NetDevices, notNil))
}

func all[T any](list string, items []*T, check func(*T) error) error {
	for i, item := range items {
		if err := check(item); err != nil {
			return fmt.Errorf("%s[%d] %w", list, i, err)
		}
	}
	return nil
}

var errEmpty = errors.New("is empty")

func notNil[T any](item *T) error {
	if item == nil {
		return errEmpty
	}
	return nil
}

func checkDeviceNode(d *raw.DeviceNode) error {
	switch {
	case d == nil:
		return errEmpty
	case d.Major < 0 || d.Major > maxMajor || d.Minor < 0 || d.Minor > maxMinor:
		return fmt.Errorf("has the device number %d:%d: the kernel's end at %d:%d", d.Major, d.Minor, maxMajor, maxMinor)
	case d.UID != nil && *d.UID == noID:
		return fmt.Errorf("has the uid %d, which is no user's", uint32(noID))
	case d.GID != nil && *d.GID == noID:
		return fmt.Errorf("has the gid %d, which is no group's", uint32(noID))
	}
	return nil
}

// checkFiles refuses what the library must not open: it reads whatever has the name of a specification, to its end.
func checkFiles(dirs []string) error {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if ext := filepath.Ext(path); entry.IsDir() || ext != ".json" && ext != ".yaml" {
				continue
			}
			info, err := os.Stat(path)
			switch {
			case err != nil: // it is gone, or a link that leads nowhere: the library says so
			case info.IsDir(): // a link to one; the same
			case !info.Mode().IsRegular():
				return fmt.Errorf("%s:1: it is no regular file", path)
			case info.Size() > maxFile:
				return fmt.Errorf("%s:1: it has %d bytes, over the limit of %d", path, info.Size(), maxFile)
			}
		}
	}
	return nil
}
