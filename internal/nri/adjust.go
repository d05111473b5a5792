package nri

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-tools/generate"

	"berth/internal/rawenv"
)

// classOfPod is what plugins send for the class of the pod's quality of service. There is none, as with CRI-O.
const classOfPod = "/PodQos"

// adjust changes a specification as plugins want. It is as it was where that cannot be done. left is the container as
// the last plugin has left it: of variables and devices the library hands on those that are to be added, and not those
// that are to be removed.
func adjust(spec *specs.Spec, wanted *api.ContainerAdjustment, left *api.Container, means Means) error {
	if names := unsettable(wanted.GetLinux().GetResources(), false); len(names) > 0 {
		return fmt.Errorf("limits of NRI plugins that are not supported: %s: %w", strings.Join(names, ", "),
			errdefs.ErrFailedPrecondition)
	}
	// The generator writes through pointers, some of which other containers share: to defaults, and to compiled profiles.
	changed := &specs.Spec{}
	data, err := rawenv.MarshalSpec(spec)
	if err == nil {
		err = rawenv.UnmarshalSpec(data, changed)
	}
	if err != nil {
		return fmt.Errorf("copy the specification: %w", err)
	}
	changed.Process.Env = slices.DeleteFunc(changed.Process.Env, func(old string) bool {
		return !slices.ContainsFunc(left.Env, func(v string) bool { return name(v) == name(old) })
	})
	rules := 0 // of the device cgroup; the library appends those of plugins
	if r := changed.Linux.Resources; r != nil {
		rules = len(r.Devices)
	}
	changed.Linux.Devices = slices.DeleteFunc(changed.Linux.Devices, func(old specs.LinuxDevice) bool {
		return !slices.ContainsFunc(left.Linux.Devices, func(d *api.LinuxDevice) bool { return d.Path == old.Path })
	})
	generator := nrigenerate.SpecGenerator(&generate.Generator{Config: changed},
		nrigenerate.WithCDIDeviceInjector(means.InjectCDI),
		nrigenerate.WithRdtResolver(func(class string) (*specs.LinuxIntelRdt, error) {
			if class == classOfPod {
				return nil, nil
			}
			return &specs.LinuxIntelRdt{ClosID: class}, nil
		}),
		nrigenerate.WithBlockIOResolver(means.BlockIO),
	)
	if err := generator.Adjust(wanted); err != nil {
		return fmt.Errorf("changes of NRI plugins to the container: %w", err)
	}
	dropReplacedLimits(changed.Process)
	dropLostRules(changed.Linux, spec.Linux.Devices, rules)
	*spec = *changed
	return nil
}

// dropLostRules takes the permission to use devices that the container had before and has not any more: it could make
// their nodes itself. Only the first rules are looked at, and not those that plugins have added.
func dropLostRules(l *specs.Linux, before []specs.LinuxDevice, rules int) {
	if rules == 0 {
		return
	}
	for _, d := range before {
		if slices.ContainsFunc(l.Devices, func(kept specs.LinuxDevice) bool {
			return kept.Type == d.Type && kept.Major == d.Major && kept.Minor == d.Minor
		}) {
			continue
		}
		first := slices.DeleteFunc(slices.Clone(l.Resources.Devices[:rules]), func(r specs.LinuxDeviceCgroup) bool {
			return r.Allow && r.Type == d.Type && r.Major != nil && *r.Major == d.Major && r.Minor != nil && *r.Minor == d.Minor
		})
		l.Resources.Devices = append(first, l.Resources.Devices[rules:]...)
		rules = len(first)
	}
}

// name is that of a variable.
func name(variable string) string {
	key, _, _ := strings.Cut(variable, "=")
	return key
}

// dropReplacedLimits leaves the last of several limits of one kind, which is a plugin's: the library appends to what
// there is, and not all runtimes take the last.
func dropReplacedLimits(p *specs.Process) {
	if p == nil {
		return
	}
	var last []specs.POSIXRlimit
	for _, limit := range p.Rlimits {
		last = slices.DeleteFunc(last, func(l specs.POSIXRlimit) bool { return l.Type == limit.Type })
		last = append(last, limit)
	}
	p.Rlimits = last
}
