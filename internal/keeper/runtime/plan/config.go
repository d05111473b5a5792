package plan

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper/hook"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// initLogLevel is logrus' number of warnings. Without one, the first steps of each start and exec tell 40 debugging
// messages, and wake the keeper as often.
const initLogLevel = "3"

// Config is a specification as libcontainer has it, but for its seccomp profile. It refuses what no engine does. Hooks
// that libcontainer runs in this process are supervised.
func Config(dir runtime.Dir, id string, systemd bool, spec *specs.Spec) (*configs.Config, error) {
	if found := startRefused.find(spec); found != "" {
		return nil, fmt.Errorf("spec with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	if spec.Linux != nil && spec.Linux.Seccomp != nil {
		linux := *spec.Linux
		linux.Seccomp = nil
		clone := *spec
		clone.Linux = &linux
		spec = &clone
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName: id, UseSystemdCgroup: systemd, Spec: spec,
	})
	if err != nil {
		return nil, fmt.Errorf("spec: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := checkConfig(spec, config); err != nil {
		return nil, err
	}
	hook.Supervise(config.Hooks, id)
	for i, l := range config.Labels {
		if strings.HasPrefix(l, "bundle=") {
			config.Labels[i] = "bundle=" + dir.Bundle(id)
		}
	}
	// A label can name a file of settings for CRIU, and these can name programs: it is not a container's to choose.
	config.Labels = append(slices.DeleteFunc(config.Labels, func(l string) bool {
		return strings.HasPrefix(l, "org.criu.config=")
	}), "org.criu.config="+dir.CRIUConfig())
	return config, nil
}

// CheckProcess refuses what no engine does.
func CheckProcess(p *specs.Process) error {
	if p == nil || len(p.Args) == 0 || p.Args[0] == "" {
		return fmt.Errorf("process without a command: %w", errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(p.Cwd) {
		return fmt.Errorf("working directory %q is not absolute: %w", p.Cwd, errdefs.ErrInvalidArgument)
	}
	if found := execRefused.find(p); found != "" {
		return fmt.Errorf("process with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkConfig refuses what specconv and libcontainer's own checks let pass, and libcontainer then leaves out.
func checkConfig(spec *specs.Spec, config *configs.Config) error {
	if l := spec.Linux; len(l.UIDMappings)+len(l.GIDMappings) > 0 && !config.Namespaces.Contains(configs.NEWUSER) {
		return fmt.Errorf("spec with mappings of user or group IDs, and without a user namespace: %w",
			errdefs.ErrInvalidArgument)
	}
	for _, m := range config.Mounts {
		if m.RecAttr != nil && !m.IsBind() {
			return fmt.Errorf("mount at %q with recursive options, which are for bind mounts: %w", m.Destination,
				errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// NewProcess is an OCI process as libcontainer has it.
func NewProcess(p *specs.Process) (*libcontainer.Process, error) {
	if err := CheckProcess(p); err != nil {
		return nil, err
	}
	lp := &libcontainer.Process{
		LogLevel: initLogLevel,
		Args:     p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd, Label: p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges, AppArmorProfile: p.ApparmorProfile,
		Scheduler: p.Scheduler, IOPriority: p.IOPriority,
	}
	for _, g := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(g))
	}
	if p.ConsoleSize != nil {
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(min(p.ConsoleSize.Width, math.MaxUint16)),
			uint16(min(p.ConsoleSize.Height, math.MaxUint16))
	}
	if c := p.Capabilities; c != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Inheritable: c.Inheritable,
			Permitted: c.Permitted, Ambient: c.Ambient,
		}
	}
	for _, r := range p.Rlimits {
		n, ok := stage.LimitNumbers[r.Type]
		if !ok {
			return nil, fmt.Errorf("limit %q: %w", r.Type, errdefs.ErrInvalidArgument)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: n, Hard: r.Hard, Soft: r.Soft})
	}
	var err error
	if lp.CPUAffinity, err = configs.ConvertCPUAffinity(p.ExecCPUAffinity); err != nil {
		return nil, fmt.Errorf("CPU affinity: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return lp, nil
}
