package pod

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/cgroup"
)

// cgroupUse is which cgroups pods live in. Its lock is held while cgroups are removed, which may wait for the kernel: so that
// no pod arrives in one, and nobody else waits.
type cgroupUse struct {
	mu    sync.Mutex
	below map[string]int // how many pods live in a cgroup or below it
	owned map[string]int // how many pods it came with: their OwnedCgroup
}

// enter counts a pod in, and makes it a co-owner of the topmost cgroup on its way that came with another.
func (u *cgroupUse) enter(dir string, r *SandboxRecord) {
	for p := dir; p != "/"; p = path.Dir(p) {
		u.below[p]++
		if u.owned[p] > 0 && (r.OwnedCgroup == "" || within(r.OwnedCgroup, p)) {
			r.OwnedCgroup = p
		}
	}
	if r.OwnedCgroup != "" {
		u.owned[r.OwnedCgroup]++
	}
}

func (u *cgroupUse) leave(dir string, r *SandboxRecord) {
	less := func(counts map[string]int, key string) {
		if counts[key]--; counts[key] <= 0 {
			delete(counts, key)
		}
	}
	for p := dir; p != "/"; p = path.Dir(p) {
		less(u.below, p)
	}
	if r.OwnedCgroup != "" {
		less(u.owned, r.OwnedCgroup)
	}
}

// placeCgroup decides where a pod's cgroups go. A pod that names no parent gets one of its own below the node's root. Without an error
// leaveCgroup has to follow.
func (m *Manager) placeCgroup(r *SandboxRecord) error {
	parent := r.Config.CgroupParent
	own := parent == "" || r.Config.OwnCgroup
	if parent == "" {
		parent = m.cfg.CgroupRoot
	}
	switch slice := strings.HasSuffix(parent, ".slice"); {
	case m.cfg.SystemdCgroup:
		parent = path.Base(parent) // kubelets give the full path of a slice
		if _, err := cgroup.Slice(parent); err != nil || !slice {
			return fmt.Errorf("config.linux.cgroup_parent %q is no slice, and this node's cgroup driver is systemd: %w",
				r.Config.CgroupParent, errdefs.ErrInvalidArgument)
		}
		if own {
			parent = podSlice(parent, r.ID)
		}
	case slice:
		return fmt.Errorf("config.linux.cgroup_parent %q is a systemd slice, and this node's cgroup driver is cgroupfs: %w",
			parent, errdefs.ErrInvalidArgument)
	default:
		parent = path.Clean("/" + parent)
		if own {
			parent = path.Join(parent, r.ID)
		}
	}
	host, err := cgroup.Host()
	if err != nil {
		return err
	}
	r.CgroupParent = parent
	dir := m.podCgroupDir(parent)
	m.cgroups.mu.Lock()
	defer m.cgroups.mu.Unlock()
	if r.Config.CgroupParent == "" && !m.cfg.SystemdCgroup {
		r.OwnedCgroup = path.Join("/", m.cfg.CgroupRoot)
	} else {
		for p := dir; p != "/" && !host.Exists(p); p = path.Dir(p) {
			r.OwnedCgroup = p
		}
	}
	m.cgroups.enter(dir, r)
	return nil
}

// podSlice is a slice for one pod: a-ID.slice below a.slice.
func podSlice(parent, id string) string {
	if parent == "-.slice" {
		return id + ".slice"
	}
	return strings.TrimSuffix(parent, ".slice") + "-" + id + ".slice"
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// cgroupPath is the cgroup of a container, in the form that a runtime spec has for the node's driver.
func (m *Manager) cgroupPath(parent, id string) string {
	if m.cfg.SystemdCgroup {
		return parent + ":berth:" + id
	}
	return path.Join(parent, id)
}

// cgroupDir is the same as a path below the cgroup mounts.
func (m *Manager) cgroupDir(parent, id string) string {
	dir, err := cgroup.Path(m.cgroupPath(parent, id), m.cfg.SystemdCgroup)
	if err != nil { // placeCgroup has checked the parent
		m.log.Error("the cgroup of a container", "container", shortID(id), "error", err)
	}
	return dir
}

// podCgroupDir is the cgroup of a whole pod as a path below the cgroup mounts.
func (m *Manager) podCgroupDir(parent string) string {
	if !m.cfg.SystemdCgroup {
		return parent
	}
	dir, err := cgroup.Slice(parent)
	if err != nil { // placeCgroup has checked it
		m.log.Error("the cgroup of a pod", "slice", parent, "error", err)
	}
	return dir
}

// removalPatience bounds how long the removal of one cgroup waits for the kernel, or for systemd. All processes are gone by then.
func (m *Manager) removalPatience() time.Duration {
	if m.cfg.SystemdCgroup {
		return 2 * time.Second
	}
	return 200 * time.Millisecond
}

// leaveCgroup ends a pod's use of its cgroups, and removes those that came with it, as far as no other pod lives below them, later
// if it cannot do so now.
func (m *Manager) leaveCgroup(r *SandboxRecord) {
	dir := m.podCgroupDir(r.CgroupParent)
	m.cgroups.mu.Lock()
	defer m.cgroups.mu.Unlock()
	m.cgroups.leave(dir, r)
	if r.OwnedCgroup == "" {
		return
	}
	if _, err := m.removeCgroups(dir, r.OwnedCgroup, m.removalPatience()); err != nil {
		m.log.Warn("remove a pod's cgroup: it is tried again", "cgroup", dir, "error", err)
		m.background.Go(func() { m.removeCgroupsLater(dir, r.OwnedCgroup) })
	}
}

// How long after a failure the removal of a cgroup is tried again. Each try takes a tenth of that at the most: pods that come
// meanwhile wait for it.
const firstRetry, longestRetry = time.Second, time.Minute

// removeCgroupsLater is for a process that does not die, or a systemd that is slow. What is left when berthd ends is the next
// one's to find.
func (m *Manager) removeCgroupsLater(dir, top string) {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
		m.cgroups.mu.Lock()
		gone, err := m.removeCgroups(dir, top, min(wait/10, m.removalPatience()))
		m.cgroups.mu.Unlock()
		if gone {
			m.log.Info("a pod's cgroup is removed at last", "cgroup", dir)
			return
		}
		m.log.Debug("remove a pod's cgroup", "cgroup", dir, "error", err)
	}
}

// removeCgroups removes dir and what is above it up to top, with patience for each; gone is false where another pod lives in
// one of these. The caller holds m.cgroups.mu.
func (m *Manager) removeCgroups(dir, top string, patience time.Duration) (gone bool, err error) {
	host, err := cgroup.Host()
	if err != nil {
		return false, err
	}
	remove := func(dir string) error {
		ctx, cancel := context.WithTimeout(m.ctx, patience)
		defer cancel()
		return m.removeCgroup(ctx, host, dir)
	}
	for p := dir; within(p, top); p = path.Dir(p) {
		if m.cgroups.below[p] > 0 {
			return false, nil
		}
		if err := remove(p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// removeCgroup removes a pod's cgroup, or one above it, as the node's driver does.
func (m *Manager) removeCgroup(ctx context.Context, host *cgroup.Hierarchies, dir string) error {
	if m.cfg.SystemdCgroup {
		return host.RemoveSlice(ctx, dir)
	}
	return host.Remove(ctx, dir)
}
