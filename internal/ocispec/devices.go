package ocispec

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath"
	"berth/internal/model"
)

const allAccess = "rwm"

// devices: nothing is allowed but what is named here (and what every runtime adds: null, zero, tty and their like).
func (b *builder) devices() error {
	linux := b.spec.Linux
	if linux.Resources == nil {
		linux.Resources = &specs.LinuxResources{}
	}
	b.sources = map[string]string{}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: allAccess}}
	if b.security.Privileged && !b.in.Handler.PrivilegedWithoutHostDevices {
		found, err := ownDevicesBelow("/dev", "/dev")
		if err != nil {
			return fmt.Errorf("devices of the host: %w", err)
		}
		for _, one := range found {
			linux.Devices = append(linux.Devices, one.LinuxDevice)
		}
		rules = []specs.LinuxDeviceCgroup{{Allow: true, Access: allAccess}}
	}
	if b.security.Privileged && b.in.Handler.PrivilegedAllDevicesAllowed {
		rules = []specs.LinuxDeviceCgroup{{Allow: true, Access: allAccess}}
	}
	defaults := b.defaultDevices()
	for i, d := range slices.Concat(defaults, b.config.Devices) {
		found, access, err := device(&d)
		if errors.Is(err, fs.ErrNotExist) && i < len(defaults) {
			b.warn("default_devices: the host has no %s, so the container goes without it", d.HostPath)
			continue
		}
		if err != nil {
			return fmt.Errorf("device %s: %w", d.HostPath, err)
		}
		for _, one := range found {
			linux.Devices = slices.DeleteFunc(linux.Devices, func(other specs.LinuxDevice) bool {
				return other.Path == one.Path
			})
			linux.Devices = append(linux.Devices, one.LinuxDevice)
			b.sources[one.Path] = one.source
			if !rules[0].Allow {
				major, minor := one.Major, one.Minor
				rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: one.Type, Major: &major, Minor: &minor,
					Access: access})
			}
		}
	}
	linux.Resources.Devices = rules
	return nil
}

// defaultDevices are those that the runtime handler has for every container, but for those in whose place the container
// has another.
func (b *builder) defaultDevices() []model.Device {
	return slices.DeleteFunc(slices.Clone(b.in.Handler.Devices), func(d model.Device) bool {
		return slices.ContainsFunc(b.config.Devices, func(own model.Device) bool {
			return path.Clean(cmpOr(own.ContainerPath, own.HostPath)) == d.ContainerPath
		})
	})
}

// deviceOwners gives the container's devices to the user and the group that its security context names,
// where the runtime handler says so. Those that a privileged container has of the host keep their owners.
func (b *builder) deviceOwners() error {
	if !b.in.Handler.DeviceOwnership || b.security.Privileged && !b.in.Handler.PrivilegedWithoutHostDevices {
		return nil
	}
	for i := range b.spec.Linux.Devices {
		d := &b.spec.Linux.Devices[i]
		if b.security.RunAsUser != nil {
			d.UID = new(uint32(*b.security.RunAsUser))
		}
		if b.security.RunAsGroup != nil {
			d.GID = new(uint32(*b.security.RunAsGroup))
		}
	}
	return nil
}

func (b *builder) bindDevices() error {
	warnings, err := bindDevices(b.spec, b.sources)
	b.warnings = append(b.warnings, warnings...)
	return err
}

// hostDevice is a device as a container gets it.
type hostDevice struct {
	specs.LinuxDevice
	source string // its path on the host, without links
}

// bindDevices: in a user namespace nobody can make a device, so that its containers get the host's own. Runtimes take
// the path of a device in the container for the one on the host; a device of another path there becomes a mount.
// sources are paths on the host, by those in the container. The warnings name devices that do not get their owner.
func bindDevices(spec *specs.Spec, sources map[string]string) (warnings []string, err error) {
	if !slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.UserNamespace
	}) {
		return nil, nil
	}
	var same []specs.LinuxDevice
	for _, d := range spec.Linux.Devices {
		source := cmp.Or(sources[d.Path], d.Path)
		n, err := hostpath.Stat(source)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("device %s: %w", d.Path, unread(err))
		}
		if err != nil || !n.IsDevice() || int64(n.Major) != d.Major || int64(n.Minor) != d.Minor {
			return nil, unable("device %s: a container with a user namespace can only have a device of the host's, and %s "+
				"is no device %d:%d", d.Path, source, d.Major, d.Minor)
		}
		if ownedOtherwise(&d, &n) {
			warnings = append(warnings, fmt.Sprintf("device %s: it keeps the owner %d:%d and the mode %04o that it has on the "+
				"host, since the container has a user namespace", d.Path, n.UID, n.GID, n.Mode&0o7777))
		}
		if path.Clean(source) == path.Clean(d.Path) {
			same = append(same, d)
			continue
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: path.Clean(d.Path), Type: "bind", Source: source,
			Options: []string{"bind", "rprivate"}})
	}
	if len(same) < len(spec.Linux.Devices) {
		spec.Linux.Devices = same
		sortMounts(spec.Mounts)
	}
	return warnings, nil
}

// ownedOtherwise tells whether a device is to have another owner or mode than the host's, which not everybody may use.
func ownedOtherwise(d *specs.LinuxDevice, host *hostpath.Node) bool {
	const everybody = 0o666
	return host.Mode&everybody != everybody &&
		(d.UID != nil && *d.UID != host.UID || d.GID != nil && *d.GID != host.GID ||
			d.FileMode != nil && uint32(d.FileMode.Perm()) != host.Mode&0o777)
}

// device is a device of the configuration: a node, a link to one, or a directory of them.
func device(d *model.Device) ([]hostDevice, string, error) {
	access := d.Permissions
	if access == "" {
		access = allAccess
	}
	if strings.Trim(access, allAccess) != "" {
		return nil, "", invalid("permissions %q are not made of r, w and m", d.Permissions)
	}
	if !filepath.IsAbs(d.HostPath) {
		return nil, "", invalid("the host path is not absolute")
	}
	at := d.ContainerPath
	if at == "" {
		at = d.HostPath
	}
	if !path.IsAbs(at) {
		return nil, "", invalid("container path %q is not absolute", at)
	}
	host, err := hostpath.Resolve(d.HostPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("it does not exist: %w (%w)", errdefs.ErrInvalidArgument, fs.ErrNotExist)
	}
	if err != nil {
		return nil, "", unread(err)
	}
	if host.Dir {
		found, err := devicesBelow(host, path.Clean(at))
		if err != nil {
			return nil, "", unread(err)
		}
		if len(found) == 0 {
			return nil, "", invalid("it is a directory without devices")
		}
		return found, access, nil
	}
	one, ok, err := deviceNode(host.Path, path.Clean(at))
	if err != nil {
		return nil, "", unread(err)
	}
	if !ok {
		return nil, "", invalid("it is neither a device nor a directory of devices")
	}
	return []hostDevice{one}, access, nil
}

// apart are directories below /dev that a container has of its own, and what other programs keep there.
var apart = []string{"pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"}

// unread is the error of a host path of a device: that of a file system that does not answer keeps its kind.
func unread(err error) error {
	if errdefs.IsUnavailable(err) {
		return err
	}
	return unable("%v", err)
}

// devicesBelow are the devices of a directory. What is on the file system of the host's own /dev is looked at here,
// at once.
func devicesBelow(dir hostpath.Resolved, at string) ([]hostDevice, error) {
	dev, err := hostpath.Resolve("/dev")
	if err == nil && dev.Mount == dir.Mount && within(dir.Path, dev.Path) {
		return ownDevicesBelow(dir.Path, at)
	}
	nodes, err := hostpath.DevicesBelow(dir.Path)
	var found []hostDevice
	for _, n := range nodes {
		if one, ok := deviceOf(&n, path.Join(at, strings.TrimPrefix(n.Path, dir.Path))); ok {
			found = append(found, one)
		}
	}
	return found, err
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func ownDevicesBelow(host, at string) ([]hostDevice, error) {
	var found []hostDevice
	err := filepath.WalkDir(host, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		inside := strings.TrimPrefix(name, host)
		if entry.IsDir() {
			if host == "/dev" && slices.Contains(apart, strings.TrimPrefix(inside, "/")) {
				return filepath.SkipDir
			}
			return nil
		}
		if name == "/dev/console" || entry.Type()&fs.ModeDevice == 0 {
			return nil // the console is the container's own
		}
		one, ok, err := deviceNode(name, path.Join(at, inside))
		if ok {
			found = append(found, one)
		}
		return err
	})
	return found, err
}

// deviceNode is the device at a path of the host; ok is false where there is none.
func deviceNode(host, at string) (d hostDevice, ok bool, err error) {
	n, err := hostpath.Stat(host)
	if errors.Is(err, fs.ErrNotExist) {
		return d, false, nil
	}
	if err != nil {
		return d, false, err
	}
	d, ok = deviceOf(&n, at)
	return d, ok, nil
}

func deviceOf(n *hostpath.Node, at string) (d hostDevice, ok bool) {
	d.LinuxDevice, d.source = specs.LinuxDevice{Path: at, Major: int64(n.Major), Minor: int64(n.Minor)}, n.Path
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		d.Type = "b"
	case unix.S_IFCHR:
		d.Type = "c"
	default:
		return d, false
	}
	mode, uid, gid := fs.FileMode(n.Mode&0o777), n.UID, n.GID
	d.FileMode, d.UID, d.GID = &mode, &uid, &gid
	return d, true
}
