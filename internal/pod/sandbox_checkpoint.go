package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/checkpoint"
	"berth/internal/disk"
	"berth/internal/model"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// CheckpointSandbox writes a checkpoint of running containers of a pod to an empty directory of the node. All of them
// stand still before the first is written down, and go on when the last is, or when this fails: nothing is left in the
// directory then. A context without a deadline means ten minutes.
//
// A container that is not the pod's, twice the same and a directory that cannot be used are errdefs.ErrInvalidArgument,
// a container or pod that does not run errdefs.ErrFailedPrecondition.
func (m *Manager) CheckpointSandbox(ctx context.Context, id, dir string, containers []string) error {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("checkpoint of pod sandbox %s", record.ShortID(s.ID()))
	dir = filepath.Clean(dir)
	chosen, err := m.chosen(s, containers)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, checkpointTimeout)
		defer cancel()
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	var members []*checkpoints.Member
	for _, c := range chosen {
		release, err := m.lockContainer(ctx, c, "checkpoint")
		if err != nil {
			return fmt.Errorf("%s: %w", what, cmp.Or(context.Cause(ctx), err))
		}
		defer release()
		c.SetCut(cut)
		defer c.SetCut(nil)
		members = append(members, &checkpoints.Member{Container: c.ContainerEntry, LoadSpec: c.LoadSpec})
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	pod := s.Record()
	if err := checkCheckpoint(&pod, chosen); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err = m.checkpoints.Pod(ctx, &pod.Config.Metadata, members, dir); err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, index.ErrCut) {
		err = cause
	}
	return fmt.Errorf("%s: %w", what, disk.Exhausted(err))
}

// chosen are the containers of a pod that a client has chosen, in an order in which all lock them.
func (m *Manager) chosen(s *index.Sandbox, ids []string) (list []*index.Container, err error) {
	name := func(c *index.Container) string { return c.Status().Config.Metadata.Name }
	if len(ids) == 0 {
		return nil, fmt.Errorf("no containers are chosen: %w", errdefs.ErrInvalidArgument)
	}
	for _, id := range ids {
		c, err := m.index.Container(id)
		switch {
		case err != nil:
			return nil, err
		case c.Sandbox != s:
			return nil, fmt.Errorf("container %s is in another pod: %w", record.ShortID(c.ID()), errdefs.ErrInvalidArgument)
		case slices.Contains(list, c):
			return nil, fmt.Errorf("container %s is chosen twice: %w", record.ShortID(c.ID()), errdefs.ErrInvalidArgument)
		case slices.ContainsFunc(list, func(o *index.Container) bool { return name(o) == name(c) }):
			return nil, fmt.Errorf("two of the containers are called %q: %w", name(c), errdefs.ErrInvalidArgument)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *index.Container) int { return cmp.Compare(a.ID(), b.ID()) })
	return list, nil
}

// checkCheckpoint refuses what cannot be written down.
func checkCheckpoint(pod *record.Sandbox, chosen []*index.Container) error {
	if pod.Phase != record.SandboxReady {
		return errSandboxNotReady
	}
	if pod.Config.UserNamespace() != nil {
		return fmt.Errorf("the pod has a user namespace, and CRIU does not join one: %w", errdefs.ErrFailedPrecondition)
	}
	for _, c := range chosen {
		if phase := new(c.Record()).Phase; phase != record.ContainerRunning {
			return fmt.Errorf("container %s is %s, not running: %w", record.ShortID(c.ID()), phase,
				errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

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
