package pod

import (
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/cgroup"
	"berth/internal/pod/record"
	"berth/internal/state"
)

// cgroupUse is which cgroups pods live in. Its lock is held while cgroups are removed, which may wait for the kernel: so that
// no pod arrives in one, and nobody else waits.
type cgroupUse struct {
	mu    sync.Mutex
	below map[string]int  // how many pods live in a cgroup or below it
	owned map[string]int  // how many pods it came with: their OwnedCgroup
	pods  map[string]bool // the IDs of the pods that are counted
}

func newCgroupUse() cgroupUse {
	return cgroupUse{below: map[string]int{}, owned: map[string]int{}, pods: map[string]bool{}}
}

// enter counts a pod in, and makes it a co-owner of the topmost cgroup on its way that came with another.
func (u *cgroupUse) enter(dir string, r *record.Sandbox) {
	u.pods[r.ID] = true
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

func (u *cgroupUse) leave(dir string, r *record.Sandbox) {
	less := func(counts map[string]int, key string) {
		if counts[key]--; counts[key] <= 0 {
			delete(counts, key)
		}
	}
	delete(u.pods, r.ID)
	for p := dir; p != "/"; p = path.Dir(p) {
		less(u.below, p)
	}
	if r.OwnedCgroup != "" {
		less(u.owned, r.OwnedCgroup)
	}
}

// placeCgroup decides where a pod's cgroups go. A pod that names no parent gets one of its own below the node's root, which is this
// berthd's alone (cgroup.Claim). Without an error leaveCgroup has to follow.
func (m *Manager) placeCgroup(r *record.Sandbox) error {
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
	for p := dir; p != "/" && !host.Exists(p); p = path.Dir(p) {
		r.OwnedCgroup = p
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
		m.log.Error("the cgroup of a container", "container", record.ShortID(id), "error", err)
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

// leftCgroups are the cgroups that came with a pod that is gone. Its JSON is the format of <root>/cgroups/<pod>/left.json, where it is
// until they are removed: what is removed is what this node has made, not what it finds.
type leftCgroups struct {
	PodID string `json:"podID"`
	Dir   string `json:"dir"` // the pod's
	Top   string `json:"top"` // the topmost that came with it
}

// leaveCgroup ends a pod's use of its cgroups, and removes those that came with it, as far as no other pod lives below them, later
// if it cannot do so now. It comes before the end of the pod's record, and may be called again.
func (m *Manager) leaveCgroup(r *record.Sandbox) {
	left := leftCgroups{PodID: r.ID, Dir: m.podCgroupDir(r.CgroupParent), Top: r.OwnedCgroup}
	m.cgroups.mu.Lock()
	defer m.cgroups.mu.Unlock()
	if !m.cgroups.pods[r.ID] {
		return
	}
	m.cgroups.leave(left.Dir, r)
	if left.Top == "" {
		return
	}
	if _, err := m.removeCgroups(left, m.removalPatience()); err != nil {
		if saveErr := m.left.Save(left.PodID, left); saveErr != nil {
			m.log.Error("record that a pod's cgroup is to be removed", "cgroup", left.Dir, "error", saveErr)
		}
		m.log.Warn("remove a pod's cgroup: it is tried again", "cgroup", left.Dir, "error", err)
		m.background.Go(func() { m.removeCgroupsLater(left) })
	}
}

// How long after a failure the removal of a cgroup is tried again. Each try takes a tenth of that at the most: pods that come
// meanwhile wait for it.
const firstRetry, longestRetry = time.Second, time.Minute

// removeCgroupsLater is for a process that does not die, a systemd that is slow, or somebody else's cgroup in one of these. What is left
// when berthd ends is on record for the next one.
func (m *Manager) removeCgroupsLater(left leftCgroups) {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
		m.cgroups.mu.Lock()
		_, err := m.removeCgroups(left, min(wait/10, m.removalPatience()))
		m.cgroups.mu.Unlock()
		if err == nil {
			m.forgetCgroups(left.PodID)
			m.log.Info("a pod's cgroup is removed at last", "cgroup", left.Dir)
			return
		}
		m.log.Debug("remove a pod's cgroup", "cgroup", left.Dir, "error", err)
	}
}

// removeCgroups removes a pod's cgroup and what is above it up to the topmost that came with it, with patience for each. Where
// another pod of this node lives in one of these, theirs is true, and the rest is that pod's to remove. The caller holds m.cgroups.mu.
func (m *Manager) removeCgroups(left leftCgroups, patience time.Duration) (theirs bool, err error) {
	host, err := cgroup.Host()
	if err != nil {
		return false, err
	}
	root := m.podCgroupDir(m.cfg.CgroupRoot)
	for p := left.Dir; within(p, left.Top) && p != root; p = path.Dir(p) {
		if m.cgroups.below[p] > 0 {
			return true, nil
		}
		if err := m.removeCgroup(host, p, strings.Contains(path.Base(p), left.PodID), patience); err != nil {
			return false, err
		}
	}
	return false, nil
}

// removeCgroup removes a cgroup as the node's driver does. What is in one that is a pod's own goes with it. In any other there may be cgroups
// of pods that this node knows nothing of, which keep it where it is.
func (m *Manager) removeCgroup(host *cgroup.Hierarchies, dir string, own bool, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(m.ctx, patience)
	defer cancel()
	switch {
	case m.cfg.SystemdCgroup && own:
		return host.RemoveSlice(ctx, dir)
	case m.cfg.SystemdCgroup:
		return host.RemoveEmptySlice(ctx, dir)
	case own:
		return host.Remove(ctx, dir)
	}
	return host.RemoveEmpty(ctx, dir)
}

// removeContainerCgroup removes the cgroup of a container that the keeper has removed, where there still is one: a restore that lost its
// keeper goes on for a moment, and CRIU makes cgroups meanwhile. Nothing else would remove it, since it is a pod's own cgroup only
// that goes with all that is in it.
func (m *Manager) removeContainerCgroup(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	host, err := cgroup.Host()
	if err != nil || !host.Exists(dir) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.removalPatience())
	defer cancel()
	return host.Remove(ctx, dir)
}

// forgetCgroups drops the record of cgroups that are removed.
func (m *Manager) forgetCgroups(podID string) {
	if err := os.RemoveAll(m.left.Path(podID)); err != nil {
		m.log.Error("remove the record of a removed cgroup", "pod", record.ShortID(podID), "error", err)
	}
}

// ownCgroup is the cgroup of a pod that names no parent.
func (m *Manager) ownCgroup(id string) string {
	if m.cfg.SystemdCgroup {
		return m.podCgroupDir(podSlice(m.cfg.CgroupRoot, id))
	}
	return path.Join("/", m.cfg.CgroupRoot, id)
}

// reconcileCgroups removes the cgroups of pods that are gone, and those of pods whose records cannot be read, as far as their IDs say
// which these are.
func (m *Manager) reconcileCgroups(broken []state.Broken) {
	list := map[string]*leftCgroups{}
	unread, spared, err := m.left.Load(func(id string) any {
		list[id] = &leftCgroups{}
		return list[id]
	})
	if err != nil {
		m.log.Error("read which cgroups are to be removed", "error", err)
		return
	}
	m.noteSpared("pod", spared)
	for _, b := range append(unread, broken...) {
		own := m.ownCgroup(b.ID)
		list[b.ID] = &leftCgroups{PodID: b.ID, Dir: own, Top: own}
	}
	for id, left := range list {
		if left.PodID != id || !podID.MatchString(id) {
			m.log.Error("a record of a cgroup that is to be removed is not of the pod that it is named by", "pod", id)
			m.forgetCgroups(id)
			continue
		}
		m.cgroups.mu.Lock()
		_, err := m.removeCgroups(*left, m.removalPatience())
		m.cgroups.mu.Unlock()
		if err != nil {
			m.log.Warn("remove a cgroup that a pod has left: it is tried again", "cgroup", left.Dir, "error", err)
			m.background.Go(func() { m.removeCgroupsLater(*left) })
			continue
		}
		m.forgetCgroups(id)
	}
}

// podID is what newID makes.
var podID = regexp.MustCompile(`^[0-9a-f]{64}$`)
