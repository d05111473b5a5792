package ocispec

import (
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// lxcfsFiles are what lxcfs has of /proc; older ones have fewer.
var lxcfsFiles = []string{"cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"}

// lxcfsMounts put lxcfs' files over those of /proc that tell of the whole node.
func (b *builder) lxcfsMounts() ([]specs.Mount, error) {
	if !b.in.Sandbox.LXCFS {
		return nil, nil
	}
	var out []specs.Mount
	for _, name := range lxcfsFiles {
		file := filepath.Join(b.host.LXCFS, "proc", name)
		if _, err := os.Stat(file); err == nil {
			out = append(out, specs.Mount{Destination: "/proc/" + name, Type: "bind", Source: file,
				Options: []string{"bind", "nosuid", "noexec", "nodev", "rprivate", "rw"}})
		}
	}
	if len(out) == 0 {
		return nil, unable("lxcfs: nothing is mounted at %s: does lxcfs run?", b.host.LXCFS)
	}
	return out, nil
}
