package ocispec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"berth/internal/apparmor"
	"berth/internal/cgroup"
)

// Host describes the node and this process, as far as a spec depends on them. It is immutable: what can change while
// berthd runs, such as the node's host name, is not in it.
type Host struct {
	Cgroups *cgroup.Hierarchies
	// UnifiedOptions is cgroup.UnifiedOptions; nil: there are none.
	UnifiedOptions func() ([]string, error)
	AppArmor       bool
	SELinux        bool
	// Capabilities are those that a container can be given: the bounding set of this process, as CAP_…, sorted.
	Capabilities []string
	// MinOOMScoreAdj is the lowest oom_score_adj that this process may give to another.
	MinOOMScoreAdj int
	// MayRaiseLimits: CAP_SYS_RESOURCE, which raises hard rlimits.
	MayRaiseLimits bool
	// SwapLimits: the kernel can limit swap.
	SwapLimits bool
	// RecursiveReadonly and IDMappedMounts: mount_setattr(2), Linux 5.12.
	RecursiveReadonly, IDMappedMounts bool
	// LXCFS is the mount point of lxcfs; empty: it is not mounted.
	LXCFS string
}

// Detect looks at the node, once.
var Detect = sync.OnceValues(detect)

func detect() (*Host, error) {
	h := &Host{SELinux: selinux.GetEnabled(), AppArmor: apparmor.Usable(), LXCFS: "/var/lib/lxcfs",
		UnifiedOptions: cgroup.UnifiedOptions}
	var err error
	if h.Cgroups, err = cgroup.Host(); err != nil {
		return nil, err
	}
	if h.Capabilities, err = Bounding(0); err != nil {
		return nil, err
	}
	if h.MayRaiseLimits, err = hasEffective(capability.CAP_SYS_RESOURCE); err != nil {
		return nil, err
	}
	h.MinOOMScoreAdj = -1000
	if !h.MayRaiseLimits {
		text, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return nil, err
		}
		if h.MinOOMScoreAdj, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
			return nil, fmt.Errorf("/proc/self/oom_score_adj: %w", err)
		}
	}
	h.SwapLimits = swapLimits(h.Cgroups)
	// A call on no file says EBADF where mount_setattr is known.
	h.RecursiveReadonly = unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}) != unix.ENOSYS
	h.IDMappedMounts = h.RecursiveReadonly
	return h, nil
}

// Bounding is the bounding set of a process, of this one with 0, as CAP_…, sorted.
func Bounding(pid int) ([]string, error) {
	supported, err := capability.ListSupported()
	if err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	process, err := capability.NewPid2(pid)
	if err == nil {
		err = process.Load()
	}
	if err != nil {
		return nil, fmt.Errorf("capabilities of process %d: %w", pid, err)
	}
	var names []string
	for _, c := range supported {
		if process.Get(capability.BOUNDING, c) {
			names = append(names, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	slices.Sort(names)
	return names, nil
}

func hasEffective(c capability.Cap) (bool, error) {
	caps, err := capability.NewPid2(0)
	if err != nil {
		return false, fmt.Errorf("capabilities: %w", err)
	}
	if err := caps.Load(); err != nil {
		return false, fmt.Errorf("capabilities: %w", err)
	}
	return caps.Get(capability.EFFECTIVE, c), nil
}

// swapLimits: v1 has the file in every cgroup; v2 has it in every cgroup but the root, so a child is asked.
func swapLimits(h *cgroup.Hierarchies) bool {
	if !h.Has("memory") {
		return false
	}
	if h.Version == cgroup.V1 {
		_, err := os.Stat(filepath.Join(h.Dir("memory", "/"), "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	found, err := filepath.Glob(filepath.Join(h.Dir("memory", "/"), "*", "memory.swap.max"))
	return err == nil && len(found) > 0
}
