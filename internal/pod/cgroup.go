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
	if m.cfg.SystemdCgroup {
		if r.Config.OwnCgroup && podResources(r.Config) != nil {
			return fmt.Errorf("config.resources: this node's cgroup driver is systemd, and the limits of the slice %q are its "+
				"maker's: %w", parent, errdefs.ErrFailedPrecondition)
		}
		if parent == "" {
			parent = m.cfg.CgroupRoot
		}
		parent = path.Base(parent) // kubelets give the full path of a slice
		if !strings.HasSuffix(parent, ".slice") {
			return fmt.Errorf("config.linux.cgroup_parent %q is no slice, and this node's cgroup driver is systemd: %w",
				r.Config.CgroupParent, errdefs.ErrInvalidArgument)
		}
		r.CgroupParent = parent
		return nil // systemd removes a slice that it made for us once it is empty
	}
	if parent == "" {
		r.CgroupParent = path.Join("/", m.cfg.CgroupRoot, r.ID)
		r.OwnedCgroup = path.Join("/", m.cfg.CgroupRoot)
		return nil
	}
	if strings.HasSuffix(parent, ".slice") {
		return fmt.Errorf("config.linux.cgroup_parent %q is a systemd slice, and this node's cgroup driver is cgroupfs: %w",
			parent, errdefs.ErrInvalidArgument)
	}
	r.CgroupParent = path.Clean("/" + parent)
	if r.Config.OwnCgroup {
		r.CgroupParent = path.Join(r.CgroupParent, r.ID)
	}
	host, err := cgroup.Host()
	if err != nil {
		return err
	}
	for p := r.CgroupParent; p != "/"; p = path.Dir(p) {
		if host.Exists(p) {
			break
		}
		r.OwnedCgroup = p
	}
	return nil
}

// adoptOwnedCgroup makes a pod a co-owner of a cgroup that another pod's arrival made. The caller holds m.mu.
func (m *Manager) adoptOwnedCgroup(r *SandboxRecord) {
	for _, other := range m.pod {
		owned := other.record().OwnedCgroup
		if owned != "" && within(r.CgroupParent, owned) && (r.OwnedCgroup == "" || within(r.OwnedCgroup, owned)) {
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

// removalPatience bounds how long the removal of a pod's cgroup waits for the kernel. All processes are gone by then.
const removalPatience = 200 * time.Millisecond

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
	ctx, cancel := context.WithTimeout(m.ctx, removalPatience)
	defer cancel()
	for p := r.CgroupParent; within(p, r.OwnedCgroup); p = path.Dir(p) {
		for _, other := range m.pod {
			if within(other.record().CgroupParent, p) {
				return
			}
		}
		if err := host.Remove(ctx, p); err != nil {
			m.log.Warn("remove a pod's cgroup", "cgroup", p, "error", err)
			return
		}
	}
}
