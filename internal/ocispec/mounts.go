package ocispec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/hostpath"
	"berth/internal/hostpath/inroot"
	"berth/internal/model"
	"berth/internal/mountns"
)

func (b *builder) mounts() error {
	var asked []specs.Mount
	var images []string // the container paths of images
	for i := range b.config.Mounts {
		m, err := b.mount(&b.config.Mounts[i])
		if err != nil && b.config.Mounts[i].Image != nil {
			err = &model.ImageVolumeError{Err: err}
		}
		if err != nil {
			return fmt.Errorf("mount at %q: %w", b.config.Mounts[i].ContainerPath, err)
		}
		if b.config.Mounts[i].Image != nil {
			images = append(images, m.Destination)
		}
		same := func(other specs.Mount) bool { return other.Destination == m.Destination }
		if before := slices.IndexFunc(asked, same); before >= 0 {
			if slices.Contains(images, m.Destination) {
				return invalid("mount at %q: two mounts have this container path, and one is an image", m.Destination)
			}
			// The later one, as with containerd. A kubelet gives a pod's volumes after the mounts of its devices, and NVIDIA's
			// plugin has one at /dev/shm.
			b.warn("mount at %q: two mounts have this container path; the later one, of %s, is made, and the one of %s is not",
				m.Destination, m.Source, asked[before].Source)
			asked = slices.Delete(asked, before, before+1)
		}
		asked = append(asked, m)
	}
	asked, err := b.addDefaults(asked)
	if err != nil {
		return err
	}
	lxcfs, err := b.lxcfsMounts()
	if err != nil {
		return err
	}
	system := b.systemMounts()
	if err := b.keepCgroupOptions(system); err != nil {
		return err
	}
	all := slices.DeleteFunc(slices.Concat(system, b.podMounts(), lxcfs), func(ours specs.Mount) bool {
		return slices.ContainsFunc(asked, func(m specs.Mount) bool { return replaces(m.Destination, ours.Destination) })
	})
	all = append(all, asked...)
	if b.security.Namespaces.PID == model.NamespaceNode && b.userNamespace() != nil &&
		slices.ContainsFunc(all, func(m specs.Mount) bool { return m.Type == "proc" }) {
		return invalid("namespaces: a container with a user namespace is in the node's PID namespace, whose /proc the " +
			"kernel lets nobody mount there: it needs a mount of the host's /proc")
	}
	b.spec.Mounts = all
	sortMounts(all)
	return nil
}

// addDefaults adds the mounts that the runtime handler has for every container, where the container has none
// of its own.
func (b *builder) addDefaults(asked []specs.Mount) ([]specs.Mount, error) {
	own := len(asked)
	for i := range b.in.Handler.Mounts {
		m := &b.in.Handler.Mounts[i]
		taken := func(other specs.Mount) bool { return other.Destination == m.ContainerPath }
		if slices.ContainsFunc(asked[:own], taken) {
			continue
		}
		if _, err := hostpath.Resolve(m.HostPath); errors.Is(err, os.ErrNotExist) {
			b.warn("default_mounts: the host has no %s, so the container goes without it", m.HostPath)
			continue
		}
		mount, err := b.mount(m)
		if err != nil {
			return nil, fmt.Errorf("default_mounts: mount at %q: %w", m.ContainerPath, err)
		}
		asked = append(asked, mount)
	}
	return asked, nil
}

// sortMounts puts parents before children, and otherwise leaves the order.
func sortMounts(mounts []specs.Mount) {
	slices.SortStableFunc(mounts, func(x, y specs.Mount) int { return depth(x.Destination) - depth(y.Destination) })
}

func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

// replaces: a mount takes the place of one of ours at its path, and at /dev, /proc and /sys of all that ours
// have below.
func replaces(asked, ours string) bool {
	if asked == ours {
		return true
	}
	switch asked {
	case "/dev", "/proc", "/sys":
		return strings.HasPrefix(ours, asked+"/")
	}
	return false
}

func (b *builder) systemMounts() []specs.Mount {
	access := "ro"
	if b.security.Privileged {
		access = "rw"
	}
	cgroupAccess := access
	if b.in.Handler.CgroupWritable && b.host.Cgroups.Version == cgroup.V2 {
		cgroupAccess = "rw" // the container's cgroup namespace shows it no other cgroup
	}
	user := b.userNamespace()
	devpts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if !b.in.Handler.InSandbox { // else the terminals are not this kernel's
		devpts = append(devpts, maxTerminals)
	}
	if const5 := uint32(5); user == nil || mapped(user.GIDs, const5) { // the group tty
		devpts = append(devpts, "gid=5")
	}
	sysfs := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs",
		Options: []string{"nosuid", "noexec", "nodev", access}}
	if user != nil && b.in.Namespaces.Network == "" {
		// sysfs belongs to the network namespace, which the user namespace does not own.
		sysfs = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys",
			Options: []string{"rbind", "nosuid", "noexec", "nodev", access, "rprivate"}}
		if b.host.RecursiveReadonly {
			// The node has mounted more in it: cgroups, which those of the container only cover, and kernel interfaces.
			sysfs.Options = append(sysfs.Options, "rnosuid", "rnoexec", "rnodev", "r"+access)
		}
	}
	mqueue := specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
		Options: []string{"nosuid", "noexec", "nodev"}}
	if user != nil && b.in.Namespaces.IPC == "" {
		mqueue = specs.Mount{Destination: "/dev/mqueue", Type: "bind", Source: "/dev/mqueue",
			Options: []string{"rbind", "nosuid", "noexec", "nodev", "rprivate"}}
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: devpts},
		mqueue,
		sysfs,
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", cgroupAccess}},
	}
}

// maxTerminals bounds the terminals of a container, as an option of its devpts. Without it one container can have all
// that the kernel gives to containers together: kernel.pty.max, 4096, of which 1024 are reserved for the host's devpts.
const maxTerminals = "max=1024"

// keepCgroupOptions gives the mount of cgroup v2 the options of the node's. Without a cgroup namespace of its own, a
// container's mount of the hierarchy sets them for the whole node.
func (b *builder) keepCgroupOptions(mounts []specs.Mount) error {
	own := func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace }
	if b.host.Cgroups.Version != cgroup.V2 || b.host.UnifiedOptions == nil ||
		slices.ContainsFunc(b.spec.Linux.Namespaces, own) {
		return nil
	}
	options, err := b.host.UnifiedOptions()
	if err != nil {
		return err
	}
	for i := range mounts {
		if mounts[i].Type == "cgroup" {
			mounts[i].Options = append(mounts[i].Options, options...)
		}
	}
	return nil
}

func mapped(mappings []model.IDMapping, id uint32) bool {
	_, ok := model.HostID(mappings, id)
	return ok
}

func (b *builder) podMounts() []specs.Mount {
	files := b.in.Files
	access := "rw"
	if b.security.ReadonlyRootfs {
		access = "ro"
	}
	var out []specs.Mount
	for _, f := range []struct{ at, from string }{
		{"/etc/hosts", files.Hosts}, {"/etc/resolv.conf", files.ResolvConf}, {"/etc/hostname", files.Hostname},
	} {
		if f.from != "" {
			out = append(out, specs.Mount{Destination: f.at, Type: "bind", Source: f.from,
				Options: []string{"bind", "nosuid", "noexec", "nodev", "rprivate", access}})
		}
	}
	if files.Shm == "" {
		return append(out, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "noexec", "nodev", "mode=1777", b.shmSize()}})
	}
	return append(out, specs.Mount{Destination: "/dev/shm", Type: "bind", Source: files.Shm,
		Options: []string{"rbind", "nosuid", "noexec", "nodev", "rprivate", "rw"}})
}

// mount turns a mount of the configuration into one of the spec.
func (b *builder) mount(m *model.Mount) (specs.Mount, error) {
	out := specs.Mount{Type: "bind"}
	if !path.IsAbs(m.ContainerPath) || strings.ContainsRune(m.ContainerPath, 0) {
		return out, invalid("the container path is not absolute")
	}
	if out.Destination = path.Clean(m.ContainerPath); out.Destination == "/" {
		return out, invalid("the container's root cannot be a mount")
	}
	readonly := m.Readonly
	var source hostpath.Resolved
	var err error
	if m.Image != nil {
		readonly = true
		source.Path, err = b.imageSource(m)
	} else {
		source, err = hostSource(m.HostPath, b.mayCreate(m.HostPath))
	}
	if err != nil {
		return out, err
	}
	out.Source = source.Path
	propagation, err := b.propagation(m, source)
	if err != nil {
		return out, err
	}
	out.Options = []string{"rbind", propagation}
	switch {
	case m.RecursiveReadOnly && (!readonly || m.Propagation != "" && m.Propagation != model.PropagationPrivate):
		return out, invalid("a recursively read-only mount is read-only and has private propagation")
	case m.RecursiveReadOnly && !b.host.RecursiveReadonly:
		return out, unable("recursively read-only mounts need Linux 5.12")
	case m.RecursiveReadOnly:
		out.Options = append(out.Options, "ro", "rro")
	case readonly:
		out.Options = append(out.Options, "ro")
	}
	// Without an option the mount keeps what the host's has: that it is read-only, nosuid, nodev or noexec, as the
	// administrator or the mountOptions of a PersistentVolume have it. Any option takes all of that away, but for what
	// is an option itself.
	out.Options = append(out.Options, m.Options...)
	if m.Image == nil && (readonly || len(m.Options) > 0) {
		if out.Options, err = keepOptions(out.Options, source); err != nil {
			return out, err
		}
	}
	isMapped := len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0
	if m.Image != nil && isMapped {
		// The image is mounted on the host with its pod's mapping, and the kernel maps no mount twice.
		if err := b.checkImageMappings(m); err != nil {
			return out, err
		}
		isMapped = false
	}
	if isMapped {
		if !b.host.IDMappedMounts {
			return out, unable("ID-mapped mounts need Linux 5.12")
		}
		if out.UIDMappings, err = idMappings("UID mappings", m.UIDMappings); err != nil {
			return out, err
		}
		if out.GIDMappings, err = idMappings("GID mappings", m.GIDMappings); err != nil {
			return out, err
		}
		out.Options = append(out.Options, "idmap")
	}
	if m.SELinuxRelabel && b.host.SELinux && b.spec.Linux.MountLabel != "" {
		// A named volume may serve several pods.
		if err := b.in.Label.Apply(b.ctx, out.Source, m.Volume != ""); err != nil {
			return out, err
		}
	}
	return out, nil
}

// DefaultShmSize is the size of /dev/shm, in bytes, as Docker and Kubernetes have it.
const DefaultShmSize = 64 << 20

func (b *builder) shmSize() string {
	return "size=" + strconv.FormatUint(cmp.Or(b.in.Handler.ShmSize, DefaultShmSize)>>10, 10) + "k"
}

// mayCreate tells whether a directory is made at a host path of a mount that is not there.
func (b *builder) mayCreate(host string) bool {
	refused := func(path string) bool { return filepath.Clean(path) == filepath.Clean(host) }
	return b.config.CreateHostPaths && !slices.ContainsFunc(b.in.Handler.RefuseMissing, refused)
}

// hostSource follows the links of a host path. Where nothing is there, a directory is made if create is set;
// else that is an error.
func hostSource(host string, create bool) (hostpath.Resolved, error) {
	if !filepath.IsAbs(host) || strings.ContainsRune(host, 0) {
		return hostpath.Resolved{}, invalid("host path %q is not absolute", host)
	}
	source, err := hostpath.Resolve(host)
	if errors.Is(err, os.ErrNotExist) && create {
		source, err = hostpath.Create(host)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return source, invalid("host path %s does not exist", host)
	case errdefs.IsUnavailable(err):
		return source, fmt.Errorf("host path %s: %w", host, err)
	case err != nil:
		return source, unable("host path %s: %v", host, err)
	}
	return source, nil
}

// keepOptions adds to the options of a mount those by which the host's own mount of the source allows less.
func keepOptions(options []string, source hostpath.Resolved) ([]string, error) {
	own, err := restrictions(source)
	if err != nil {
		return nil, err
	}
	for _, option := range own {
		if !slices.Contains(options, option) {
			options = append(options, option)
		}
	}
	return options, nil
}

// restrictions looks into the table of mounts where the kernel does not answer for one mount, or the mount is in
// another namespace: statfs(2) would ask a file system that may not answer.
func restrictions(source hostpath.Resolved) ([]string, error) {
	if source.Unique != 0 && (mountns.Node() == nil || mountns.Own(source.Path)) {
		if own, err := mountns.Restrictions(source.Unique); err == nil {
			return own, nil
		}
	}
	on, err := mountOf(source)
	if err != nil {
		return nil, err
	}
	all := strings.Split(on.Options, ",")
	return slices.DeleteFunc(all, func(o string) bool { return !mountns.IsRestriction(o) }), nil
}

// ImageMount is an image that is mounted on the host.
type ImageMount struct {
	Path string
	// Remote: the image has layers of a remote snapshotter. They may not answer, so they are only looked at by a child
	// (package hostpath).
	Remote bool
}

// imageSource is where an image is mounted on the host, or a path in it, whose links stay in the image.
func (b *builder) imageSource(m *model.Mount) (string, error) {
	mounted := b.in.ImageMounts[m.ContainerPath]
	if m.HostPath != "" {
		return "", invalid("image %s and host path %s exclude one another", m.Image.Image, m.HostPath)
	}
	if mounted.Path == "" {
		return "", unable("image %s is not mounted on the host", m.Image.Image)
	}
	if m.ImageSubPath == "" {
		return mounted.Path, nil
	}
	if path.IsAbs(m.ImageSubPath) || slices.Contains(strings.Split(m.ImageSubPath, "/"), "..") {
		return "", invalid("image sub path %q is absolute or leads up", m.ImageSubPath)
	}
	if b.resolver == nil {
		b.resolver = inroot.NewResolver(b.ctx)
	}
	find := b.resolver.Path
	if mounted.Remote {
		find = func(root, name string) (string, error) { return hostpath.PathInRoot(b.ctx, root, name) }
	}
	source, err := find(mounted.Path, m.ImageSubPath)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", invalid("image %s has no %q", m.Image.Image, m.ImageSubPath)
	case errdefs.IsUnavailable(err) || err != nil && b.ctx.Err() != nil:
		return "", fmt.Errorf("image %s: sub path %q: %w", m.Image.Image, m.ImageSubPath, err)
	case err != nil:
		return "", invalid("image %s: sub path %q: %v", m.Image.Image, m.ImageSubPath, err)
	}
	return source, nil
}

// checkImageMappings refuses mappings of an image's mount that are not those of the pod's user namespace, by which
// images are mounted. A kubelet copies the pod's to every mount.
func (b *builder) checkImageMappings(m *model.Mount) error {
	user := b.userNamespace()
	if user == nil || !slices.Equal(m.UIDMappings, user.UIDs) || !slices.Equal(m.GIDMappings, user.GIDs) {
		return invalid("image %s: UID and GID mappings differ from those of the pod's user namespace", m.Image.Image)
	}
	return nil
}

// propagation is the mount option, and sets the propagation of the container's root that goes with it. Mounts can only
// spread where the host's mount is shared (or, from the host alone, a slave of one).
func (b *builder) propagation(m *model.Mount, source hostpath.Resolved) (string, error) {
	switch m.Propagation {
	case model.PropagationPrivate, "":
		return "rprivate", nil
	case model.PropagationHostToContainer, model.PropagationBidirectional:
	default:
		return "", invalid("propagation %q is unknown", m.Propagation)
	}
	on, err := mountOf(source)
	if err != nil {
		return "", err
	}
	fields := strings.Fields(on.Optional)
	shared := slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, "shared:") })
	slave := slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, "master:") })
	root := &b.spec.Linux.RootfsPropagation
	if m.Propagation == model.PropagationBidirectional {
		if !shared {
			return "", unable("host path %s is on the mount %s, which is not shared: bidirectional propagation needs that",
				source.Path, on.Mountpoint)
		}
		*root = "rshared"
		return "rshared", nil
	}
	if !shared && !slave {
		return "", unable("host path %s is on the mount %s, which is neither shared nor a slave: propagation from the host "+
			"needs that", source.Path, on.Mountpoint)
	}
	if *root != "rshared" {
		*root = "rslave"
	}
	return "rslave", nil
}

// mountOf is the mount that a path is on, as in mountinfo.
func mountOf(source hostpath.Resolved) (on *mountinfo.Info, err error) {
	// The node's own mount may have become another than the one that is seen here. In Berth's directories it is not what
	// the container gets.
	switch {
	case source.Mount == 0: // before Linux 5.8
		on, err = mountns.Above(source.Path)
	case mountns.Node() != nil && !mountns.Own(source.Path):
		err = mountns.OnNode(func() (err error) {
			on, err = mountns.Above(source.Path)
			return err
		})
	default:
		on, err = mountOfID(source.Mount)
	}
	if err != nil {
		return nil, fmt.Errorf("host path %s: %w", source.Path, err)
	}
	return on, nil
}

func mountOfID(id uint64) (*mountinfo.Info, error) {
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		match := strconv.Itoa(m.ID) == strconv.FormatUint(id, 10)
		return !match, match
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, unable("it is on no mount that this process sees")
	}
	return found[0], nil
}
