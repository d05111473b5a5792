package index

import (
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// nameSandbox takes the name of a new pod. A client that named it without metadata gets the first attempt that is free,
// and no second pod of that name until the first one has stopped. The caller holds x.mu.
func (x *Index) nameSandbox(r *record.Sandbox) error {
	cfg := r.Config
	if cfg.Name != "" {
		for id, other := range x.pods {
			if other.Status().Config.Name != cfg.Name {
				continue
			}
			if phase := other.Record().Phase; phase != record.SandboxStopped && phase != record.SandboxRemoving {
				return fmt.Errorf("pod sandbox name %q is taken by %s: %w", cfg.Name, id, errdefs.ErrAlreadyExists)
			}
		}
		named := *cfg
		named.Metadata.Attempt = x.freeAttempt(func(n uint32) string {
			meta := cfg.Metadata
			meta.Attempt = n
			return sandboxName(meta)
		})
		r.Config, cfg = &named, &named
	}
	return x.reserve("pod sandbox", sandboxName(cfg.Metadata), r.ID)
}

// nameContainer does for a container of a pod what nameSandbox does for a pod; its name is free again once it has
// ended.
func (x *Index) nameContainer(r *record.Container) error {
	cfg, pod := r.Config, r.SandboxID
	if cfg.Name != "" {
		for id, other := range x.containers {
			st := other.Status()
			if st.SandboxID == pod && st.Config.Named() == cfg.Name && st.State != model.ContainerExited {
				return fmt.Errorf("container name %q is taken by %s: %w", cfg.Name, id, errdefs.ErrAlreadyExists)
			}
		}
		named := *cfg
		named.Metadata.Attempt = x.freeAttempt(func(n uint32) string {
			return containerName(pod, model.ContainerMetadata{Name: cfg.Metadata.Name, Attempt: n})
		})
		r.Config, cfg = &named, &named
	}
	return x.reserve("container", containerName(pod, cfg.Metadata), r.ID)
}

// freeAttempt is the first attempt whose name nobody has.
func (x *Index) freeAttempt(name func(attempt uint32) string) (n uint32) {
	for x.names[name(n)] != "" {
		n++
	}
	return n
}
