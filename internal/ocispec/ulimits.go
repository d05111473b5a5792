package ocispec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/model"
)

func rlimitOf(u model.Ulimit) specs.POSIXRlimit {
	// -1 becomes the kernel's RLIM_INFINITY.
	return specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(u.Name), Hard: uint64(u.Hard), Soft: uint64(u.Soft)}
}

// Ulimits are a container's limits as a spec has them: the handler's, and over them those that a client asks for.
// What the kernel would not let this process give is lowered where the handler asks for it, with a warning, and refused
// where the client does.
func Ulimits(asked []model.Ulimit, handler []specs.POSIXRlimit, h *Host) (out []specs.POSIXRlimit,
	warnings []string, err error) {
	for _, limit := range handler {
		which, known := rlimits[limit.Type]
		if !known || limit.Soft > limit.Hard {
			return nil, nil, invalid("handler: rlimit %s of %d to %d is unknown, or its soft limit is above the hard one",
				limit.Type,
				limit.Soft, limit.Hard)
		}
		if most, above := aboveOwn(which, limit.Hard, h); above {
			warnings = append(warnings, fmt.Sprintf("%s: hard limit %d is above the %d that this node's runtime may give",
				limit.Type, limit.Hard, most))
			limit.Hard, limit.Soft = most, min(limit.Soft, most)
		}
		out = append(out, limit)
	}
	for i, u := range asked {
		if err := model.CheckUlimit(u); err != nil {
			return nil, nil, limitUlimit(i).Wrong(err)
		}
		limit := rlimitOf(u)
		if most, above := aboveOwn(rlimits[limit.Type], limit.Hard, h); above {
			return nil, nil, limitUlimit(i).Wrong(unable("%s: the kernel lets this node's runtime, which has no "+
				"CAP_SYS_RESOURCE, give %d at most, and %d is asked for", u.Name, most, u.Hard))
		}
		at := slices.IndexFunc(out, func(other specs.POSIXRlimit) bool { return other.Type == limit.Type })
		if at >= 0 {
			out[at] = limit
		} else {
			out = append(out, limit)
		}
	}
	return out, warnings, nil
}

// limitUlimit names a limit of processes in errors, by its place.
func limitUlimit(i int) model.Field { return model.LimitUlimits + model.Field("["+strconv.Itoa(i)+"]") }

// aboveOwn tells whether a hard limit is above that of this process, where that binds it.
func aboveOwn(which int, hard uint64, h *Host) (most uint64, above bool) {
	if h.MayRaiseLimits {
		return 0, false
	}
	var own unix.Rlimit
	if unix.Getrlimit(which, &own) != nil {
		return 0, false
	}
	return own.Max, hard > own.Max
}

func (b *builder) rlimits() error {
	var asked []model.Ulimit
	if b.config.Resources != nil {
		asked = b.config.Resources.Ulimits
	}
	limits, warnings, err := Ulimits(asked, b.in.Handler.Rlimits, b.host)
	if err != nil {
		return model.FieldContainerResources.Within(err)
	}
	b.spec.Process.Rlimits = limits
	b.warnings = append(b.warnings, warnings...)
	return nil
}
