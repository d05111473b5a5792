package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
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
