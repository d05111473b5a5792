package plan

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/filter"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// Stages says whether this node can run stages.
type Stages struct {
	Program  *stage.Program // nil: the kernel cannot run stages, and libcontainer does everything
	NoSetups string         // why no stage sets a container up: what the kernel lacks; empty: it can
}

// OpenStages prepares the stage's program in the keeper's directory. A kernel that cannot run it is no error.
func OpenStages(dir string, log *slog.Logger) (*Stages, error) {
	s := &Stages{}
	if err := stage.Supported(); err != nil {
		s.NoSetups = err.Error()
		log.Warn("containers start more slowly", "error", err)
		return s, nil
	}
	var err error
	if s.Program, err = stage.Seal(dir); err != nil {
		return nil, err
	}
	if err := s.Program.PrepareSetups(dir); err != nil {
		s.NoSetups = err.Error()
		log.Warn("containers start more slowly", "error", err)
	}
	return s, nil
}

// namespaceFlags are the namespaces that a stage joins.
var namespaceFlags = map[configs.NamespaceType]uint32{
	configs.NEWUSER: unix.CLONE_NEWUSER, configs.NEWNS: unix.CLONE_NEWNS, configs.NEWPID: unix.CLONE_NEWPID,
	configs.NEWNET: unix.CLONE_NEWNET, configs.NEWIPC: unix.CLONE_NEWIPC, configs.NEWUTS: unix.CLONE_NEWUTS,
	configs.NEWCGROUP: unix.CLONE_NEWCGROUP,
}

// Joinable returns what execs by the stage need of a container; nil, with the reason, where these need libcontainer.
func (s *Stages) Joinable(id string, config *configs.Config) (j *record.Join, reason string) {
	switch found := execDeclined.find(config); {
	case found != "":
		return nil, "the container has " + found
	case s.Program == nil:
		return nil, s.NoSetups
	}
	j = &record.Join{Umask: config.Umask, OOMScore: config.OomScoreAdj, AppArmor: config.AppArmorProfile,
		Label:              config.ProcessLabel,
		OwnProcesses:       config.Namespaces.IsPrivate(configs.NEWPID),
		OwnCgroupNamespace: config.Namespaces.IsPrivate(configs.NEWCGROUP), Delegated: Delegated(config)}
	for _, ns := range config.Namespaces {
		flag, ok := namespaceFlags[ns.Type]
		if !ok {
			return nil, fmt.Sprintf("the container has a namespace of type %s", strings.TrimPrefix(string(ns.Type), "NEW"))
		}
		j.Namespaces |= flag
	}
	if j.Namespaces&unix.CLONE_NEWNS == 0 {
		return nil, "the container has no mount namespace of its own"
	}
	if !config.NoNewKeyring {
		j.Keyring = "_ses." + id
	}
	if j.Namespaces&unix.CLONE_NEWUSER != 0 {
		var err error
		if j.RootUID, err = config.HostRootUID(); err != nil {
			return nil, err.Error()
		}
		if j.RootGID, err = config.HostRootGID(); err != nil {
			return nil, err.Error()
		}
	}
	for _, l := range config.Rlimits {
		j.Limits = append(j.Limits, stage.Limit{Resource: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	return j, ""
}

// Delegated says whether a container may write to its cgroups of version 2. It is false for a container that could do
// the same to all cgroups of the node, as a privileged one.
func Delegated(config *configs.Config) bool {
	c := config.Capabilities
	privileged := !config.Namespaces.Contains(configs.NEWUSER) && c != nil && slices.Contains(c.Bounding, "CAP_SYS_ADMIN")
	return cgroups.IsCgroup2UnifiedMode() && !privileged && slices.ContainsFunc(config.Mounts,
		func(m *configs.Mount) bool { return m.Device == "cgroup" && m.Flags&unix.MS_RDONLY == 0 })
}

// capabilityBits are the kernel's numbers of capabilities by name.
var capabilityBits = sync.OnceValues(func() (map[string]uint64, error) {
	list, err := capability.ListSupported()
	bits := make(map[string]uint64, len(list))
	for _, c := range list {
		bits["CAP_"+strings.ToUpper(c.String())] = 1 << uint(c)
	}
	return bits, err
})

// capabilities leaves names out that the kernel does not know.
func capabilities(c *specs.LinuxCapabilities) (*stage.Capabilities, error) {
	bits, err := capabilityBits()
	if err != nil {
		return nil, err
	}
	set := func(names []string) (out uint64) {
		for _, n := range names {
			out |= bits[n]
		}
		return out
	}
	return &stage.Capabilities{
		Bounding: set(c.Bounding), Effective: set(c.Effective), Inheritable: set(c.Inheritable),
		Permitted: set(c.Permitted), Ambient: set(c.Ambient),
	}, nil
}

// Staged returns a process as the last stage makes it; nil, with the reason, where only libcontainer can.
func Staged(p *specs.Process) (s *stage.Process, reason string, err error) {
	switch found := execDeclined.find(p); {
	case found != "":
		return nil, "the container has " + found, nil
	case p.Capabilities == nil:
		return nil, "the process has no capabilities of its own", nil
	case p.SelinuxLabel != "" && p.ApparmorProfile != "":
		return nil, "the container has an SELinux label and an AppArmor profile", nil
	}
	caps, err := capabilities(p.Capabilities)
	if err != nil {
		return nil, "", err
	}
	s = &stage.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd, UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids,
		NoNewPrivileges: p.NoNewPrivileges, Capabilities: caps, AppArmor: p.ApparmorProfile, Label: p.SelinuxLabel,
		Terminal: p.Terminal,
	}
	if p.ConsoleSize != nil {
		s.Rows, s.Columns = uint16(min(p.ConsoleSize.Height, math.MaxUint16)),
			uint16(min(p.ConsoleSize.Width, math.MaxUint16))
	}
	return s, "", nil
}

// SameUmask refuses an exec with a umask that is not its container's: the specification has one for the init process
// only, and libcontainer gives execs that.
func SameUmask(p *specs.Process, container *uint32) error {
	own := uint32(defaultUmask)
	if container != nil {
		own = *container
	}
	if u := p.User.Umask; u != nil && *u != own {
		return fmt.Errorf("umask %#o of an exec in a container with %#o: %w", *u, own, errdefs.ErrNotImplemented)
	}
	return nil
}

// defaultUmask is that of processes whose specification names none.
const defaultUmask = 0o022

// Limits are limits as a stage sets them.
func Limits(list []specs.POSIXRlimit) ([]stage.Limit, error) {
	var out []stage.Limit
	for _, l := range list {
		n, ok := stage.LimitNumbers[l.Type]
		if !ok {
			return nil, fmt.Errorf("limit %q: %w", l.Type, errdefs.ErrInvalidArgument)
		}
		out = append(out, stage.Limit{Resource: n, Soft: l.Soft, Hard: l.Hard})
	}
	return out, nil
}

// Rights are the capabilities that this process has.
var Rights = sync.OnceValues(func() (*configs.Capabilities, error) {
	numbers, err := capabilityBits()
	if err != nil {
		return nil, err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, os.NewSyscallError("capget", err)
	}
	have := uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
	names := make([]string, 0, bits.OnesCount64(have))
	for name, bit := range numbers {
		if have&bit != 0 {
			names = append(names, name)
		}
	}
	return &configs.Capabilities{Bounding: names, Effective: names, Permitted: names}, nil
})

// Filter returns a container's profile compiled, with its key; nil where libcontainer must see to the profile itself.
func Filter(
	ctx context.Context, store *filter.Store, c runtime.Container, p *specs.LinuxSeccomp,
) (key string, compiled *filter.Filter, err error) {
	if key, err = filter.Key(p); err != nil {
		return "", nil, err
	}
	c.UseFilter(key) // from before it is looked for: its files stay
	compiled, err = store.Get(ctx, key, p)
	return key, compiled, err
}
