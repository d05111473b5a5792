package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/checkpoint"
	"berth/internal/disk"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// RestoreSandbox makes a pod and its containers from a checkpoint that CheckpointSandbox has written to a directory.
// It returns their IDs, those of the containers in the order of their configurations. A container goes on where it was
// written down when it is started. When this fails, nothing of the pod is left.
//
// A directory that is not there is errdefs.ErrNotFound, one that is no checkpoint or has other containers than are
// asked for errdefs.ErrInvalidArgument, a configuration that does not fit the checkpoint errdefs.ErrFailedPrecondition.
func (m *Manager) RestoreSandbox(ctx context.Context, dir string, cfg *model.SandboxConfig, handler string,
	containers []*model.ContainerConfig) (id string, ids []string, err error) {
	if !filepath.IsAbs(dir) {
		return "", nil, fmt.Errorf("checkpoint path %q is not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	dir = filepath.Clean(dir)
	found, err := checkpoint.ReadPod(dir)
	if err != nil {
		return "", nil, err
	}
	members, err := assign(found, containers)
	if err != nil {
		return "", nil, fmt.Errorf("checkpoint of a pod at %s: %w", dir, err)
	}
	if id, err = m.runSandbox(ctx, cfg, handler, true); err != nil {
		return "", nil, err
	}
	s, _ := m.index.ByID(id)
	for i, member := range members {
		var made string
		made, err = m.createContainer(ctx, &creation{
			m: m, id: record.NewID(), sandbox: s, cfg: containers[i], member: member, memberOf: dir,
		})
		if err != nil {
			break
		}
		ids = append(ids, made)
	}
	if err == nil {
		err = m.finishRestore(ctx, s, ids)
	}
	if err != nil {
		clean, cancel := undo.Context(ctx)
		defer cancel()
		if rerr := m.dropRestored(clean, s); rerr != nil {
			m.log.Error("remove a pod that was not restored", "pod_id", id, "error", rerr)
		}
		return "", nil, fmt.Errorf("restore pod %s/%s: %w", cfg.Metadata.Namespace, cfg.Metadata.Name, err)
	}
	return id, ids, nil
}

// finishRestore lets clients find a pod that was restored, with its containers. It keeps the pod's lock until they are
// told, so that nobody is told before of a start or a removal.
func (m *Manager) finishRestore(ctx context.Context, s *index.Sandbox, containers []string) error {
	release, err := s.Lock(ctx, "restore")
	if err != nil {
		return err
	}
	defer release()
	if err := s.Update(record.Save, func(r *record.Sandbox) { r.Restoring = false }); err != nil {
		return disk.Exhausted(err)
	}
	m.events.Tell(s, s.ID(), model.EventCreated)
	m.events.Tell(s, s.ID(), model.EventStarted)
	for _, made := range containers {
		m.events.Tell(s, made, model.EventCreated)
	}
	return nil
}

// dropRestored removes a pod that was not restored whole. No client knows it.
func (m *Manager) dropRestored(ctx context.Context, s *index.Sandbox) error {
	release, err := s.Lock(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	return m.teardown.RemoveSandbox(ctx, s)
}

// assign finds each container in the checkpoint of a pod by its name. All must be there, and no more.
func assign(pod *checkpoint.Pod, containers []*model.ContainerConfig) ([]*checkpoint.PodContainer, error) {
	var members []*checkpoint.PodContainer
	var missing, asked []string
	for _, cfg := range containers {
		name := cfg.Metadata.Name
		if slices.Contains(asked, name) {
			return nil, fmt.Errorf("two containers are called %q: %w", name, errdefs.ErrInvalidArgument)
		}
		asked = append(asked, name)
		i := slices.IndexFunc(pod.Containers, func(c checkpoint.PodContainer) bool { return c.Name == name })
		if i < 0 {
			missing = append(missing, name)
			continue
		}
		members = append(members, &pod.Containers[i])
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("it has no container %q: %w", missing, errdefs.ErrInvalidArgument)
	}
	for _, c := range pod.Containers {
		if !slices.Contains(asked, c.Name) {
			return nil, fmt.Errorf("it has a container %q, which the request does not name: %w", c.Name,
				errdefs.ErrInvalidArgument)
		}
	}
	return members, nil
}
