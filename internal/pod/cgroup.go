package pod

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/cgroup"
)

// placeCgroup decides where a pod's cgroups go. A pod that names no parent gets one of its own below the node's root.
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
	r.CgroupParent = parent
	if r.Config.CgroupParent == "" && !m.cfg.SystemdCgroup {
		r.OwnedCgroup = path.Join("/", m.cfg.CgroupRoot)
		return nil
	}
	host, err := cgroup.Host()
	if err != nil {
		return err
	}
	for p := m.podCgroupDir(r.CgroupParent); p != "/"; p = path.Dir(p) {
		if host.Exists(p) {
			break
		}
		r.OwnedCgroup = p
	}
	return nil
}

// podSlice is a slice for one pod: a-ID.slice below a.slice.
func podSlice(parent, id string) string {
	if parent == "-.slice" {
		return id + ".slice"
	}
	return strings.TrimSuffix(parent, ".slice") + "-" + id + ".slice"
}

// adoptOwnedCgroup makes a pod a co-owner of a cgroup that another pod's arrival made. The caller holds m.mu.
func (m *Manager) adoptOwnedCgroup(r *SandboxRecord) {
	dir := m.podCgroupDir(r.CgroupParent)
	for _, other := range m.pod {
		owned := other.record().OwnedCgroup
		if owned != "" && within(dir, owned) && (r.OwnedCgroup == "" || within(r.OwnedCgroup, owned)) {
			r.OwnedCgroup = owned
		}
	}
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

// removeOwnedCgroup removes the cgroups that came with a pod, as far as no other pod lives below them. The caller holds
// m.mu, so that no pod arrives meanwhile, and has taken the pod out of the map.
func (m *Manager) removeOwnedCgroup(r *SandboxRecord) {
	if r.OwnedCgroup == "" {
		return
	}
	host, err := cgroup.Host()
	if err != nil {
		return
	}
	remove := func(dir string) error {
		ctx, cancel := context.WithTimeout(m.ctx, m.removalPatience())
		defer cancel()
		return m.removeCgroup(ctx, host, dir)
	}
	for p := m.podCgroupDir(r.CgroupParent); within(p, r.OwnedCgroup); p = path.Dir(p) {
		for _, other := range m.pod {
			if within(m.podCgroupDir(other.record().CgroupParent), p) {
				return
			}
		}
		if err := remove(p); err != nil {
			m.log.Warn("remove a pod's cgroup", "cgroup", p, "error", err)
			return
		}
	}
}

// removeCgroup removes a pod's cgroup, or one above it, as the node's driver does.
func (m *Manager) removeCgroup(ctx context.Context, host *cgroup.Hierarchies, dir string) error {
	if m.cfg.SystemdCgroup {
		return host.RemoveSlice(ctx, dir)
	}
	return host.Remove(ctx, dir)
}
