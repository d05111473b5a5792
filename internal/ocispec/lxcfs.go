package ocispec

import (
	"fmt"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/hostpath"
)

// lxcfsFiles are what lxcfs has of /proc; older ones have fewer.
var lxcfsFiles = []string{"cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"}

// lxcfsMounts put lxcfs' files over those of /proc that tell of the whole node.
func (b *builder) lxcfsMounts() ([]specs.Mount, error) {
	if !b.in.Sandbox.LXCFS {
		return nil, nil
	}
	dir := filepath.Join(b.host.LXCFS, "proc")
	names, err := hostpath.Present(dir, lxcfsFiles) // where lxcfs hangs, berthd itself could not even be killed
	if err != nil {
		return nil, fmt.Errorf("lxcfs: %w", err)
	}
	var out []specs.Mount
	for _, name := range names {
		out = append(out, specs.Mount{Destination: "/proc/" + name, Type: "bind", Source: filepath.Join(dir, name),
			Options: []string{"bind", "nosuid", "noexec", "nodev", "rprivate", "rw"}})
	}
	if len(out) == 0 {
		return nil, unable("lxcfs: nothing is mounted at %s: does lxcfs run?", b.host.LXCFS)
	}
	return out, nil
}
