package plan

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/record"
	"berth/internal/keeper/stage"
	"berth/internal/mountns"
)

// A container is set up by the stage (keeper/stage) as libcontainer would: the same mounts, devices and links in the
// same order. What follows makes the stage's list of what libcontainer has been told.

// NotStaged is why the stage does not set this container up, and libcontainer does; empty: the stage does. What it
// knows is the list in fields.go, and what follows. join and joinReason are what Joinable has returned.
func (s *Stages) NotStaged(
	spec *specs.Spec, config *configs.Config, p *libcontainer.Process, join *record.Join, joinReason string,
) string {
	for _, v := range []any{spec, config, p} {
		if found := startDeclined.find(v); found != "" {
			return "the container has " + found
		}
	}
	switch {
	case join == nil:
		return joinReason
	case s.NoSetups != "":
		return s.NoSetups
	case !setupRights():
		return "the keeper lacks CAP_SYS_ADMIN, CAP_MKNOD or CAP_SYS_CHROOT"
	case config.Namespaces.Contains(configs.NEWUSER) && !setsUpUserNamespace(config):
		return "the container has a user namespace that is not its pod's, or mounts that the stage does not make in one"
	case config.Namespaces.IsPrivate(configs.NEWNET):
		return "the container has a network namespace of its own"
	case !config.Namespaces.IsPrivate(configs.NEWNS):
		return "the container has no mount namespace of its own"
	case len(config.Sysctl) > 0 && !slices.ContainsFunc(config.Mounts, isProc):
		return "the container has sysctls and no /proc"
	}
	// A limit that does not bear the process that joins another's namespace of processes and the one it forks.
	if l := config.Cgroups.Resources.PidsLimit; l != nil && *l > 0 && *l < 4 &&
		config.Namespaces.PathOf(configs.NEWPID) != "" {
		return "the container shares its pod's processes and may have fewer than four"
	}
	procs := 0
	for _, m := range config.Mounts {
		switch {
		case m.IsIDMapped() && !ownIDs(config, m):
			return fmt.Sprintf("the container's mount at %q is mapped to other IDs than the container's", m.Destination)
		case m.Flags&^knownFlags != 0:
			return fmt.Sprintf("the container's mount at %q has flags %#x", m.Destination, m.Flags&^knownFlags)
		case m.ClearedFlags&^knownFlags != 0:
			return fmt.Sprintf("the container's mount at %q has cleared flags %#x", m.Destination, m.ClearedFlags&^knownFlags)
		case !path.IsAbs(m.Destination):
			return fmt.Sprintf("the container's mount at %q has no absolute path", m.Destination)
		}
		if m.Device == "proc" {
			procs++
		}
	}
	if procs > 1 && config.Namespaces.PathOf(configs.NEWPID) != "" {
		return "the container shares its pod's processes and has several mounts of /proc"
	}
	return ""
}

// setsUpUserNamespace says whether the stage can do it in the user namespace of this container: a pod's, which is there
// already.
func setsUpUserNamespace(config *configs.Config) bool {
	switch {
	case config.Namespaces.PathOf(configs.NEWUSER) == "", !config.Namespaces.Contains(configs.NEWPID),
		config.RootPropagation&unix.MS_SHARED != 0:
		return false
	}
	for _, m := range config.Mounts {
		if m.RecAttr != nil && m.RecAttr.Attr_clr != 0 {
			return false // what the host has locked cannot be told from the outside
		}
		if m.Device == "cgroup" && !config.Namespaces.IsPrivate(configs.NEWCGROUP) && cgroups.IsCgroup2UnifiedMode() {
			return false
		}
	}
	return true
}

// ownIDs says whether a mount is mapped as the container's user namespace is.
func ownIDs(config *configs.Config, m *configs.Mount) bool {
	user := config.Namespaces.PathOf(configs.NEWUSER)
	switch {
	case user == "" || !m.IsBind():
		return false
	case m.IDMapping.UserNSPath != "":
		return m.IDMapping.UserNSPath == user
	}
	return slices.Equal(m.IDMapping.UIDMappings, config.UIDMappings) &&
		slices.Equal(m.IDMapping.GIDMappings, config.GIDMappings)
}

// knownFlags are those that the stage gives mount(2), or turns into attributes of a bind. Those that are of file
// systems mean nothing for a bind, there as in mount(2).
const knownFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW | atimeFlags |
	unix.MS_BIND | unix.MS_REC | unix.MS_SYNCHRONOUS | unix.MS_DIRSYNC | unix.MS_MANDLOCK | unix.MS_LAZYTIME |
	unix.MS_I_VERSION | unix.MS_SILENT

func isProc(m *configs.Mount) bool { return path.Clean(m.Destination) == "/proc" && m.Device == "proc" }

// rights that the stage needs, which this process may have been started without.
var setupRights = sync.OnceValue(func() bool {
	c, err := Rights()
	return err == nil && slices.Contains(c.Permitted, "CAP_SYS_ADMIN") && slices.Contains(c.Permitted, "CAP_MKNOD") &&
		slices.Contains(c.Permitted, "CAP_SYS_CHROOT")
})

// Setup lists what the stage does to set a container up. paths are the directories of the container's cgroups.
func Setup(
	config *configs.Config, join *record.Join, paths map[string]string, cwd string, terminal bool,
) (*stage.Setup, error) {
	s := &stage.Setup{
		Root: config.Rootfs, RootPropagation: uint64(config.RootPropagation),
		Umask: 0o022, OOMScore: config.OomScoreAdj, Keyring: join.Keyring, KeyringRight: KeyringSearch,
		KeyringUID: join.KeyringUID,
	}
	if config.Umask != nil {
		s.Umask = *config.Umask
	}
	for _, ns := range config.Namespaces {
		switch {
		case ns.Type == configs.NEWUSER:
			s.User, s.KeyringRight = ns.Path, keyringSearchByOthers
		case ns.Path != "":
			s.Join = append(s.Join, stage.Namespace{Type: namespaceFlags[ns.Type], Path: ns.Path})
		default:
			s.Make |= namespaceFlags[ns.Type]
		}
	}
	if config.Cgroups.Systemd {
		s.Wait = true
	} else {
		for _, controller := range slices.Sorted(maps.Keys(paths)) {
			if dir := paths[controller]; controller == "" {
				s.Cgroup, s.Clone = dir, cgroups.IsCgroup2UnifiedMode()
			} else if !slices.Contains(s.Cgroups, dir) {
				s.Cgroups = append(s.Cgroups, dir)
			}
		}
	}
	ops, err := operations(config, paths, cwd, terminal)
	if err != nil {
		return nil, err
	}
	s.Operations, s.Node = ops, mountns.Node()
	for i := range ops {
		ops[i].Own = ops[i].Kind == stage.Bind && mountns.Own(ops[i].Source)
	}
	s.ReopenNull = ownDev(config)
	return s, nil
}

// KeyringSearch lets the user search the session keyring, as libcontainer has it (KEY_USR_SEARCH); in a user namespace
// others may too (KEY_OTH_SEARCH).
const (
	KeyringSearch         = 0x80000
	keyringSearchByOthers = 0x8
)

// KeyringUID is the user to whom the session keyring of a container without a user namespace belongs. The kernel limits
// the keys of each user, 200 of one that is not root, so containers do not share it. It is of the upper half of the
// user IDs, which no system gives to users, since some programs take these for negative numbers.
func KeyringUID(id string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(id))
	return 0xe0000000 | h.Sum32()>>4
}

// ownDev: /dev is set up, and not the host's.
func ownDev(config *configs.Config) bool {
	return !slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool {
		return m.Device == "bind" && path.Clean(m.Destination) == "/dev"
	})
}

func operations(
	config *configs.Config, paths map[string]string, cwd string, terminal bool,
) ([]stage.Operation, error) {
	var ops []stage.Operation
	add := func(o ...stage.Operation) { ops = append(ops, o...) }
	for _, m := range config.Mounts {
		list, err := mountOperations(config, m, paths)
		if err != nil {
			return nil, fmt.Errorf("mount %q at %q: %w", m.Source, m.Destination, err)
		}
		add(list...)
	}
	if ownDev(config) {
		for _, d := range config.Devices {
			o, err := deviceOperation(d, config.Namespaces.Contains(configs.NEWUSER))
			if err != nil {
				return nil, err
			}
			if o != nil {
				add(*o)
			}
		}
		add(stage.Operation{Kind: stage.Link, Target: "/dev/ptmx", Source: "pts/ptmx", Replace: true})
		for _, l := range devLinks() {
			add(stage.Operation{Kind: stage.Link, Target: l[0], Source: l[1]})
		}
	}
	add(stage.Operation{Kind: stage.Pivot})
	if p := config.RootPropagation; p != 0 && p&(unix.MS_PRIVATE|unix.MS_SLAVE) == 0 {
		add(stage.Operation{Kind: stage.RootPropagate, Flags: uint64(p)})
	}
	if cwd != "" { // as libcontainer does: before the root and file systems in memory become read-only
		add(stage.Operation{Kind: stage.Directory, Target: path.Clean("/" + cwd)})
	}
	if terminal {
		add(stage.Operation{Kind: stage.Terminal})
	}
	for _, m := range config.Mounts {
		target := path.Clean(m.Destination)
		if m.Flags&unix.MS_RDONLY != 0 && (m.Device == "tmpfs" || target == "/dev") {
			add(stage.Operation{Kind: stage.Readonly, Target: target})
		}
	}
	if config.Readonlyfs {
		add(stage.Operation{Kind: stage.RootReadonly})
	}
	if config.Hostname != "" {
		add(stage.Operation{Kind: stage.Hostname, Data: config.Hostname})
	}
	if config.Domainname != "" {
		add(stage.Operation{Kind: stage.Domainname, Data: config.Domainname})
	}
	for _, key := range slices.Sorted(maps.Keys(config.Sysctl)) {
		add(stage.Operation{Kind: stage.Sysctl, Source: strings.ReplaceAll(key, ".", "/"), Data: config.Sysctl[key]})
	}
	for _, p := range config.ReadonlyPaths {
		add(stage.Operation{Kind: stage.Protect, Target: path.Clean("/" + p)})
	}
	masked := map[string]bool{}
	for _, p := range config.MaskPaths {
		if p = path.Clean("/" + p); !masked[p] {
			masked[p] = true
			add(stage.Operation{Kind: stage.Mask, Target: p, Data: config.MountLabel})
		}
	}
	return ops, nil
}

// overProc are the files of /proc that something may be mounted on: what lxcfs emulates.
var overProc = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime", "/proc/loadavg",
	"/proc/slabinfo", "/proc/sys/kernel/ns_last_pid", "/proc/sys/crypto/fips_enabled",
}

func mountOperations(config *configs.Config, m *configs.Mount, paths map[string]string) ([]stage.Operation, error) {
	target := path.Clean(m.Destination)
	switch {
	case target == "/":
		return nil, errors.New("it is on the container's root")
	case target == "/proc" && !m.IsBind() && m.Device != "proc":
		return nil, errors.New("it is not of type proc")
	case strings.HasPrefix(target, "/proc/") && !slices.Contains(overProc, target):
		return nil, errors.New("it is inside /proc")
	}
	if m.Device == "cgroup" {
		return cgroupOperations(config, m, target, paths)
	}
	o := stage.Operation{
		Kind: stage.Mount, Source: m.Source, Target: target, Type: m.Device, Data: m.Data, Flags: uint64(m.Flags),
		PlainTarget: m.Device == "proc" || m.Device == "sysfs", CopyMode: m.Device == "tmpfs",
		InProc: slices.Contains(overProc, target),
	}
	if m.IsBind() {
		bindOperation(&o, m)
	} else {
		if m.Device == "tmpfs" || target == "/dev" {
			o.Flags &^= unix.MS_RDONLY // it is made so when all is in it
		}
		if m.Device == "proc" {
			o.Set = toAttributes(o.Flags)
		}
		if !ownLabels[m.Device] {
			o.Data = label.FormatMountLabel(o.Data, config.MountLabel)
		}
	}
	ops := []stage.Operation{o}
	if m.Device == "mqueue" && config.MountLabel != "" {
		ops = append(ops, stage.Operation{Kind: stage.Label, Target: target, Data: config.MountLabel})
	}
	if propagation := m.PropagationFlags; len(propagation) == 1 && o.Kind == stage.Bind {
		ops[0].Propagation = uint64(propagation[0])
	} else {
		for _, p := range propagation {
			ops = append(ops, stage.Operation{Kind: stage.Propagate, Target: target, Flags: uint64(p)})
		}
	}
	return ops, nil
}

// ownLabels are file systems that are not mounted with an SELinux label. All containers of a pod share its mqueue: its
// label cannot be another for each mount.
var ownLabels = map[string]bool{"proc": true, "sysfs": true, "mqueue": true}

// attributes are MS_* as MOUNT_ATTR_*.
var attributes = map[uint64]uint64{
	unix.MS_RDONLY: unix.MOUNT_ATTR_RDONLY, unix.MS_NOSUID: unix.MOUNT_ATTR_NOSUID, unix.MS_NODEV: unix.MOUNT_ATTR_NODEV,
	unix.MS_NOEXEC: unix.MOUNT_ATTR_NOEXEC, unix.MS_NOSYMFOLLOW: unix.MOUNT_ATTR_NOSYMFOLLOW,
}

const atimeFlags = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME | unix.MS_NODIRATIME

func toAttributes(flags uint64) (out uint64) {
	for ms, attr := range attributes {
		if flags&ms != 0 {
			out |= attr
		}
	}
	return out
}

// bindOperation: one without flags keeps those of its source; any flag says what all of them are, but for the times of
// access, which stay if no flag is about them.
func bindOperation(o *stage.Operation, m *configs.Mount) {
	o.Kind, o.Type, o.Data, o.Flags = stage.Bind, "", "", 0
	flags := uint64(m.Flags)
	o.Recursive = flags&unix.MS_REC != 0
	if flags&^(unix.MS_BIND|unix.MS_REC) != 0 || m.ClearedFlags != 0 {
		o.Set = toAttributes(flags)
		o.Clear = toAttributes(^uint64(0)) &^ o.Set
		o.MustClear = toAttributes(uint64(m.ClearedFlags)) &^ o.Set
		if flags&atimeFlags != 0 {
			o.Clear |= unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
			o.MustClear |= unix.MOUNT_ATTR__ATIME
			switch {
			case flags&unix.MS_STRICTATIME != 0:
				o.Set |= unix.MOUNT_ATTR_STRICTATIME
			case flags&unix.MS_NOATIME != 0:
				o.Set |= unix.MOUNT_ATTR_NOATIME
			}
			if flags&unix.MS_NODIRATIME != 0 {
				o.Set |= unix.MOUNT_ATTR_NODIRATIME
				o.Clear &^= unix.MOUNT_ATTR_NODIRATIME
			}
		}
	}
	if a := m.RecAttr; a != nil {
		o.SetAll, o.ClearAll = a.Attr_set, a.Attr_clr
	}
	if m.IsIDMapped() {
		o.MapIDs, o.MapAllIDs = true, m.IDMapping.Recursive
	}
}

// cgroupOperations: version 2 is a file system; version 1 is a directory with one for each hierarchy, or with a bind of
// the container's part of it.
func cgroupOperations(config *configs.Config, m *configs.Mount, target string,
	paths map[string]string) ([]stage.Operation, error) {
	propagate := func(ops []stage.Operation, target string) []stage.Operation {
		for _, p := range m.PropagationFlags {
			ops = append(ops, stage.Operation{Kind: stage.Propagate, Target: target, Flags: uint64(p)})
		}
		return ops
	}
	if cgroups.IsCgroup2UnifiedMode() {
		return []stage.Operation{
			{Kind: stage.Mount, Source: m.Source, Target: target, Type: "cgroup2", Flags: uint64(m.Flags), Data: m.Data},
		}, nil
	}
	const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	ops := propagate([]stage.Operation{{
		Kind: stage.Mount, Source: "tmpfs", Target: target, Type: "tmpfs", Flags: flags,
		Data: label.FormatMountLabel("mode=755", config.MountLabel), CopyMode: true,
	}}, target)
	hierarchies, err := v1Hierarchies()
	if err != nil {
		return nil, err
	}
	var links []stage.Operation
	for _, h := range hierarchies {
		name := filepath.Base(h.mount.Mountpoint)
		at := path.Join(target, name)
		if strings.Contains(name, ",") {
			for part := range strings.SplitSeq(name, ",") {
				links = append(links, stage.Operation{Kind: stage.Link, Target: path.Join(target, part), Source: name})
			}
		}
		if config.Namespaces.Contains(configs.NEWCGROUP) {
			source, data := "cgroup", name
			if name == "systemd" {
				source, data = "systemd", cgroups.CgroupNamePrefix+name
			}
			ops = append(ops, stage.Operation{
				Kind: stage.Mount, Source: source, Target: at, Type: "cgroup",
				Flags: flags | uint64(m.Flags&unix.MS_RDONLY), Data: data,
			})
			continue
		}
		o := stage.Operation{Source: h.directory(paths), Target: at}
		bindOperation(&o, &configs.Mount{Flags: unix.MS_BIND | unix.MS_REC | m.Flags})
		// CRIU cannot restore one that is a slave of the host's.
		o.Propagation = unix.MS_PRIVATE | unix.MS_REC
		ops = propagate(append(ops, o), at)
	}
	return append(ops, links...), nil
}

// hierarchy is one of version 1 as the host has it mounted.
type hierarchy struct {
	mount cgroups.Mount
	own   string // the keeper's own directory in it
}

// v1Hierarchies do not change while a keeper runs.
var v1Hierarchies = sync.OnceValues(func() ([]hierarchy, error) {
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, err
	}
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var out []hierarchy
	for _, m := range mounts {
		dir, err := m.GetOwnCgroup(own)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(m.Root, dir)
		if err != nil {
			return nil, err
		}
		out = append(out, hierarchy{m, filepath.Join(m.Mountpoint, rel)})
	}
	return out, nil
})

// directory is the container's; in a hierarchy that has no part in its limits it is where the keeper is.
func (h *hierarchy) directory(paths map[string]string) string {
	for _, s := range h.mount.Subsystems {
		for _, key := range []string{s, cgroups.CgroupNamePrefix + s} {
			if p := paths[key]; p != "" {
				return p
			}
		}
	}
	return h.own
}

// deviceOperation makes a node, or shows the node's own where a user namespace may make none.
func deviceOperation(d *devices.Device, inUserNamespace bool) (*stage.Operation, error) {
	p := path.Clean("/" + d.Path)
	if d.Path == "" || p == "/dev/ptmx" {
		return nil, nil
	}
	if inUserNamespace {
		return &stage.Operation{Kind: stage.Bind, Source: d.Path, Target: p}, nil
	}
	o := &stage.Operation{
		Kind: stage.Device, Target: p, Mode: uint32(d.FileMode) & 0o7777, UID: d.Uid, GID: d.Gid, Major: uint32(d.Major),
		Minor: uint32(d.Minor),
	}
	switch d.Type {
	case devices.BlockDevice:
		o.Mode |= unix.S_IFBLK
	case devices.CharDevice:
		o.Mode |= unix.S_IFCHR
	case devices.FifoDevice:
		o.Mode |= unix.S_IFIFO
		o.Major, o.Minor = 0, 0
	default:
		return nil, fmt.Errorf("device %q has the unknown type %q", d.Path, string(d.Type))
	}
	return o, nil
}

// devLinks are what programs expect in /dev, by name and content.
var devLinks = sync.OnceValue(func() [][2]string {
	links := [][2]string{
		{"/dev/fd", "/proc/self/fd"}, {"/dev/stdin", "/proc/self/fd/0"}, {"/dev/stdout", "/proc/self/fd/1"},
		{"/dev/stderr", "/proc/self/fd/2"},
	}
	if _, err := os.Stat("/proc/kcore"); err == nil {
		links = append(links, [2]string{"/dev/core", "/proc/kcore"})
	}
	return links
})
