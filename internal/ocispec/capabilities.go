package ocispec

import (
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// DefaultCapabilities are the capabilities of a container that asks for none: the set that images have come to expect.
var DefaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

var knownCapabilities = sync.OnceValue(func() map[string]bool {
	known := map[string]bool{}
	for _, c := range capability.ListKnown() {
		known["CAP_"+strings.ToUpper(c.String())] = true
	}
	return known
})

const allCapabilities = "ALL"

func (b *builder) capabilities() error {
	add, addAll, err := capabilityNames("add", b.security.Capabilities.Add)
	if err != nil {
		return err
	}
	drop, dropAll, err := capabilityNames("drop", b.security.Capabilities.Drop)
	if err != nil {
		return err
	}
	ambient, ambientAll, err := capabilityNames("add ambient", b.security.Capabilities.AddAmbient)
	if err != nil {
		return err
	}
	set := b.in.Handler.Capabilities
	if set == nil {
		set = DefaultCapabilities
	}
	set = slices.Clone(set)
	all := b.in.Handler.Bounding
	if all == nil {
		all = b.host.Capabilities
	}
	if addAll || b.security.Privileged {
		set = slices.Clone(all)
	}
	// "drop ALL, add X" is X alone, and "add ALL, drop X" is all but X.
	if dropAll && !b.security.Privileged {
		set = nil
	}
	if ambientAll {
		ambient = all
	}
	set = append(set, add...)
	set = append(set, ambient...)
	if !b.security.Privileged {
		set = slices.DeleteFunc(set, func(c string) bool { return slices.Contains(drop, c) })
		ambient = slices.DeleteFunc(slices.Clone(ambient), func(c string) bool { return slices.Contains(drop, c) })
	}
	slices.Sort(set)
	set = slices.Compact(set)
	has := func(c string) bool { return slices.Contains(all, c) }
	for _, c := range set {
		if !has(c) {
			b.warn("capability %s cannot be given: this node's runtime does not have it", c)
		}
	}
	set = slices.DeleteFunc(set, func(c string) bool { return !has(c) })
	ambient = slices.DeleteFunc(slices.Clone(ambient), func(c string) bool { return !has(c) })
	b.spec.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding:  set,
		Effective: set,
		Permitted: set,
		// Inheritable ones would survive an execve by a user who should have none; only ambient ones need them.
		Inheritable: ambient,
		Ambient:     ambient,
	}
	return nil
}

// capabilityNames brings names to the form CAP_…; all: ALL was among them.
func capabilityNames(field string, names []string) (list []string, all bool, err error) {
	for _, name := range names {
		full := strings.ToUpper(name)
		if full == allCapabilities || full == "CAP_ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(full, "CAP_") {
			full = "CAP_" + full
		}
		if !knownCapabilities()[full] {
			return nil, false, invalid("capabilities: %s: %q is unknown", field, name)
		}
		list = append(list, full)
	}
	return list, all, nil
}
