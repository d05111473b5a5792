package pod

import (
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// nameSandbox takes the name of a new pod. A client that named it without metadata gets the first attempt that is free, and
// no second pod of that name until the first one has stopped. The caller holds m.mu.
func (m *Manager) nameSandbox(s *sandbox) error {
	cfg := s.rec.Config
	if cfg.Name != "" {
		for id, other := range m.pod {
			if other.status.Load().Config.Name != cfg.Name {
				continue
			}
			if phase := other.record().Phase; phase != SandboxStopped && phase != SandboxRemoving {
				return fmt.Errorf("pod sandbox name %q is taken by %s: %w", cfg.Name, id, errdefs.ErrAlreadyExists)
			}
		}
		named := *cfg
		named.Metadata.Attempt = m.freeAttempt(func(n uint32) string {
			meta := cfg.Metadata
			meta.Attempt = n
			return sandboxName(meta)
		})
		s.rec.Config, cfg = &named, &named
	}
	return m.reserve("pod sandbox", sandboxName(cfg.Metadata), s.id)
}

// nameContainer does for a container of a pod what nameSandbox does for a pod; its name is free again once it has ended.
func (m *Manager) nameContainer(c *container) error {
	cfg, pod := c.rec.Config, c.rec.SandboxID
	if cfg.Name != "" {
		for id, other := range m.ctr {
			st := other.status.Load()
			if st.SandboxID == pod && st.Config.Named() == cfg.Name && st.State != model.ContainerExited {
				return fmt.Errorf("container name %q is taken by %s: %w", cfg.Name, id, errdefs.ErrAlreadyExists)
			}
		}
		named := *cfg
		named.Metadata.Attempt = m.freeAttempt(func(n uint32) string {
			return containerName(pod, model.ContainerMetadata{Name: cfg.Metadata.Name, Attempt: n})
		})
		c.rec.Config, cfg = &named, &named
	}
	return m.reserve("container", containerName(pod, cfg.Metadata), c.id)
}

// freeAttempt is the first attempt whose name nobody has.
func (m *Manager) freeAttempt(name func(attempt uint32) string) (n uint32) {
	for m.names[name(n)] != "" {
		n++
	}
	return n
}
