// Package blockio has the classes of block I/O that the node's administrator defines in a file, in the format of
// github.com/intel/goresctrl, which containerd and CRI-O read too. A class is a set of weights and limits by device;
// annotations of pods, and NRI plugins, name the class of a container.
package blockio

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	library "github.com/intel/goresctrl/pkg/blockio"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

// Classes are those of a file, by name. Patterns of device names stand for the devices that were there when the file
// was read. The zero value and nil have no class.
type Classes struct {
	byName map[string]*model.BlockIO
}

// sysfs is where the kernel tells the name of a block device by its number.
const sysfs = "/sys/dev/block"

// loading guards the library's only set of classes.
var loading sync.Mutex

// Load reads a file of classes. An empty path is no file, and no classes. An error names the file. A pattern that fits
// no device, and a weight that the device's scheduler does not support, are warnings in the log.
func Load(path string, log *slog.Logger) (*Classes, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("classes of block I/O: %w", err)
	}
	loading.Lock()
	defer loading.Unlock()
	library.SetLogger(log.With("file", path))
	// An empty file takes the classes of the file before away.
	if err := library.SetConfigFromData(text, false); err != nil {
		return nil, fmt.Errorf("classes of block I/O in %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	c := &Classes{byName: map[string]*model.BlockIO{}}
	for _, name := range library.GetClasses() {
		limits, err := library.OciLinuxBlockIO(name)
		if err == nil {
			c.byName[name], err = convert(limits)
		}
		if err != nil {
			return nil, fmt.Errorf("class %q of block I/O in %s: %w", name, path, err)
		}
	}
	return c, nil
}

// Get returns the limits of a class, which the caller may not write to.
func (c *Classes) Get(class string) (*model.BlockIO, error) {
	if c == nil {
		return nil, fmt.Errorf("class %q of block I/O: this node has no classes (block_io_classes_file is empty): %w",
			class, errdefs.ErrFailedPrecondition)
	}
	limits, ok := c.byName[class]
	if !ok {
		return nil, fmt.Errorf("class %q of block I/O: this node has none of this name, but %s: %w", class,
			c.names(), errdefs.ErrInvalidArgument)
	}
	return limits, nil
}

func (c *Classes) names() string {
	names := make([]string, 0, len(c.byName))
	for name := range c.byName {
		names = append(names, strconv.Quote(name))
	}
	if len(names) == 0 {
		return "no class at all"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Of returns the class that annotations of a container or of its pod name, and the annotation's key; empty: none.
func Of(container string, annotations, pod map[string]string) (class, key string) {
	for _, from := range []struct {
		annotations map[string]string
		key         string
	}{
		{annotations, library.BlockioContainerAnnotation},
		{pod, library.BlockioPodAnnotationContainerPrefix + container},
		{pod, library.BlockioPodAnnotation},
	} {
		if class := from.annotations[from.key]; class != "" {
			return class, from.key
		}
	}
	return "", ""
}

// convert names the devices, which the library has as numbers.
func convert(l *specs.LinuxBlockIO) (*model.BlockIO, error) {
	out := &model.BlockIO{}
	if l.Weight != nil {
		out.Weight = *l.Weight
	}
	for _, d := range l.WeightDevice {
		path, err := node(d.Major, d.Minor)
		if err != nil {
			return nil, err
		}
		out.WeightDevices = append(out.WeightDevices, model.WeightDevice{Path: path, Weight: *d.Weight})
	}
	for _, t := range []struct {
		from []specs.LinuxThrottleDevice
		to   *[]model.ThrottleDevice
	}{
		{l.ThrottleReadBpsDevice, &out.ReadBps},
		{l.ThrottleWriteBpsDevice, &out.WriteBps},
		{l.ThrottleReadIOPSDevice, &out.ReadIOPS},
		{l.ThrottleWriteIOPSDevice, &out.WriteIOPS},
	} {
		for _, d := range t.from {
			path, err := node(d.Major, d.Minor)
			if err != nil {
				return nil, err
			}
			*t.to = append(*t.to, model.ThrottleDevice{Path: path, Rate: d.Rate})
		}
	}
	return out, nil
}

// node is the path of a block device's node.
func node(major, minor int64) (string, error) {
	number := fmt.Sprintf("%d:%d", major, minor)
	text, err := os.ReadFile(filepath.Join(sysfs, number, "uevent"))
	if err != nil {
		return "", fmt.Errorf("name of the block device %s: %w", number, err)
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return filepath.Join("/dev", name), nil
		}
	}
	return "", fmt.Errorf("name of the block device %s: the kernel tells none", number)
}
