package ocispec

import (
	"context"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cdi"
)

// InjectCDI adds CDI devices to a specification that is built already. dirs are where their files are. ctx bounds how
// long it waits for file systems. If it ends first, the specification may change later, and must not be used.
func InjectCDI(ctx context.Context, spec *specs.Spec, dirs, names []string) (warnings []string, err error) {
	var sources map[string]string
	if err := waiting(ctx, "CDI devices", func() (err error) {
		if sources, err = cdi.Open(dirs).Inject(spec, names); err != nil {
			return unable("CDI devices: %v", err)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, gid := range spec.Process.User.AdditionalGids {
		if gid > MaxID {
			return nil, invalid("CDI devices: additional group %d is not a number from 0 to %d", gid, MaxID)
		}
	}
	return bindDevices(spec, sources)
}

// Fit makes a specification that plugins have changed one that this node can start: hooks have an environment of
// their own and an end, swap is limited where this kernel can do so, and the OOM score is one that this node's runtime
// may give. The warnings say what it had to change.
func Fit(spec *specs.Spec, host *Host) (warnings []string) {
	hookDefaults(spec.Hooks)
	if r := spec.Linux.Resources; r != nil && r.Memory != nil && !host.SwapLimits {
		r.Memory.Swap = nil // a limit of memory sets it, too
	}
	if score := spec.Process.OOMScoreAdj; score != nil && *score < host.MinOOMScoreAdj {
		warnings = append(warnings, fmt.Sprintf("oom_score_adj %d, which a plugin wants, is below the %d that this node's "+
			"runtime may give", *score, host.MinOOMScoreAdj))
		least := host.MinOOMScoreAdj
		spec.Process.OOMScoreAdj = &least
	}
	return warnings
}
