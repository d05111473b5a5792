package checkpoints

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"berth/internal/checkpoint"
	"berth/internal/disk"
	keeper "berth/internal/keeper/client"
	"berth/internal/liblog"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// Member is a container in the checkpoint of a pod.
type Member struct {
	Container *record.ContainerEntry
	LoadSpec  func() (*specs.Spec, error) // reads its specification

	dir   string // in the checkpoint
	nonce string // for which it is frozen
	thaw  func(context.Context) error
}

// Pod writes a checkpoint of a pod's containers to an empty directory. All of them stand still before the first is
// written down, and until the last is. When this fails, nothing is left in the directory; the records of the containers
// name what is made, for a berthd that is killed meanwhile. A file in the directory marks the checkpoint as unfinished.
// Once that is gone, nobody but the client removes what is there, whatever a record says.
func (k *Checkpointer) Pod(ctx context.Context, pod *model.SandboxMetadata, members []*Member, dir string) error {
	release, alone := k.Hold(dir)
	defer release()
	if !alone {
		return fmt.Errorf("another checkpoint is being written to %s, or what is left of one is being removed: %w", dir,
			errdefs.ErrFailedPrecondition)
	}
	if err := checkpoint.CheckOutput(dir); err != nil {
		return err
	}
	err := k.writePod(ctx, pod, members, dir)
	if err != nil {
		k.discard(members)
		return err
	}
	// A power cut must not bring the mark back either.
	if err := disk.SyncDir(dir); err != nil {
		k.Log.Warn("write the directory of a checkpoint to the disk", "directory", dir, "error", err)
	}
	for _, m := range members {
		if err := m.Container.Update(record.Happened, forget); err != nil {
			k.Log.Error("record the end of a checkpoint", "container_id", m.Container.ID(), "error", err)
		}
	}
	return nil
}

// Hold keeps checkpoints of pods out of a directory until it is released. alone says that nobody else holds it.
func (k *Checkpointer) Hold(dir string) (release func(), alone bool) {
	dir = filepath.Clean(dir)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.outputs == nil {
		k.outputs = map[string]int{}
	}
	k.outputs[dir]++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.outputs[dir]--; k.outputs[dir] == 0 {
			delete(k.outputs, dir)
		}
	}, k.outputs[dir] == 1
}

func (k *Checkpointer) writePod(ctx context.Context, pod *model.SandboxMetadata, members []*Member, dir string) error {
	// No other checkpoint has this name, so that the records of an earlier one in the directory are not about this one.
	mark := filepath.Join(dir, unfinished+record.NewID()[:16])
	for i, m := range members {
		m.dir = filepath.Join(dir, checkpoint.ContainerDir(i))
		if err := k.begin(m.Container, m.dir, filepath.Join(dir, checkpoint.PodFile), mark); err != nil {
			return err
		}
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if err := k.cut(ctx, members); err != nil {
		return err
	}
	found := checkpoint.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, CheckpointedAt: time.Now()}
	for i, m := range members {
		cfg := new(m.Container.Record()).Config
		found.Containers = append(found.Containers, checkpoint.PodContainer{
			Name: cfg.Metadata.Name, Directory: checkpoint.ContainerDir(i),
			Command: cfg.Command, Args: cfg.Args, WorkingDir: cfg.WorkingDir, Env: cfg.Env,
		})
	}
	if err := checkpoint.WritePod(dir, &found); err != nil {
		return err
	}
	return os.Remove(mark)
}

// unfinished begins the name of the file that marks the checkpoint of a pod as unfinished.
const unfinished = ".berth-unfinished-"

// cut freezes all containers, writes each down and copies its files, and thaws them all.
func (k *Checkpointer) cut(ctx context.Context, members []*Member) error {
	begin := time.Now()
	err := k.frozen(ctx, members)
	end, cancel := undo.Context(ctx)
	defer cancel()
	thawed := each(members, len(members), func(m *Member) error {
		if m.thaw == nil {
			return nil
		}
		return m.thaw(end)
	})
	if err != nil {
		return err // why one was thawed before, if it was
	}
	if thawed != nil {
		return thawed
	}
	k.Log.Info("a pod was written down", "pod_id", new(members[0].Container.Record()).SandboxID,
		"stood_still_ms", liblog.Milliseconds(time.Since(begin)))
	return nil
}

// frozen freezes all containers, and then writes each down.
func (k *Checkpointer) frozen(ctx context.Context, members []*Member) error {
	deadline, _ := ctx.Deadline()
	err := each(members, len(members), func(m *Member) (err error) {
		m.nonce, m.thaw, err = k.Keeper.Freeze(ctx, m.Container.ID(), time.Until(deadline))
		return err
	})
	if err != nil {
		return err
	}
	return each(members, runtime.GOMAXPROCS(0), func(m *Member) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return k.writeDown(ctx, m, time.Until(deadline))
	})
}

// each calls fn for all containers of a pod, at most so many at a time. The error is the first one, and names its
// container.
func each(members []*Member, most int, fn func(*Member) error) error {
	var all errgroup.Group
	all.SetLimit(most)
	for _, m := range members {
		all.Go(func() error {
			err := fn(m)
			if err != nil {
				err = fmt.Errorf("container %s: %w", new(m.Container.Record()).Config.Metadata.Name, err)
			}
			return err
		})
	}
	return all.Wait()
}

// writeDown writes the checkpoint of a container that is frozen for it.
func (k *Checkpointer) writeDown(ctx context.Context, m *Member, timeout time.Duration) error {
	r := m.Container.Record()
	_, err := k.Keeper.Checkpoint(ctx, &keeper.CheckpointRequest{
		ID: r.ID, Nonce: m.nonce, Work: m.dir, Images: filepath.Join(m.dir, checkpoint.ImagesDir), Timeout: timeout,
		CRIU: k.Settings().CRIU,
	})
	if err != nil {
		return err
	}
	deleted, err := k.copyFiles(ctx, m.Container, &r, m.dir)
	if err != nil {
		return err
	}
	spec, err := m.LoadSpec()
	if err != nil {
		return err
	}
	return describe(&r, spec, m.dir, deleted)
}

// discard removes what was written.
func (k *Checkpointer) discard(members []*Member) {
	for _, m := range members {
		if err := k.Clean(m.Container); err != nil {
			k.Log.Error("remove what is left of a checkpoint", "container_id", m.Container.ID(), "error", err)
		}
	}
}

// FindIn reads the checkpoint of a container in that of a pod, in the directory dir, as Find does. The image that the
// configuration names must be the one that the container had.
func (k *Checkpointer) FindIn(ctx context.Context, cfg *model.ContainerConfig, dir string,
	of *checkpoint.PodContainer) (*model.Image, *Restoring, error) {
	dir = filepath.Join(dir, of.Directory)
	info, err := checkpoint.ReadContainer(dir)
	if err != nil {
		return nil, nil, err
	}
	re := &Restoring{
		Restored: record.Restored{Source: dir, Container: info.Config.ID}, info: info, directory: dir, member: of,
	}
	img, err := k.Images.Get(ctx, cfg.Image.Image)
	if err != nil {
		return nil, nil, model.FieldContainerImage.Wrong(err)
	}
	was, err := k.imageOf(ctx, re)
	if err != nil {
		return nil, nil, model.FieldContainerImage.Wrong(err)
	}
	if was.ID != img.ID {
		return nil, nil, model.FieldContainerImage.Wrong(re.differ("the image", img.ID, was.ID))
	}
	return img, re, nil
}

// same refuses a configuration, and the specification that was made of it, that describe another process than the one
// that was written down.
func (re *Restoring) same(cfg *model.ContainerConfig, spec *specs.Spec) error {
	was, user, wasUser := re.member, spec.Process.User, re.info.Spec.Process.User
	if changed := sorted(append(unlike(cfg.Env, was.Env), unlike(was.Env, cfg.Env)...)); len(changed) > 0 {
		return fmt.Errorf("the checkpoint %s has another environment than the request, by %s: a restored process cannot "+
			"change it: %w", re.Source, strings.Join(changed, ", "), errdefs.ErrFailedPrecondition)
	}
	for what, pair := range map[string][2]any{
		"the command":           {cfg.Command, was.Command},
		"the arguments":         {cfg.Args, was.Args},
		"the working directory": {cfg.WorkingDir, was.WorkingDir},
		"the user":              {user.UID, wasUser.UID},
		"the group":             {user.GID, wasUser.GID},
		"the groups":            {sorted(user.AdditionalGids), sorted(wasUser.AdditionalGids)},
	} {
		if fmt.Sprintf("%q", pair[0]) != fmt.Sprintf("%q", pair[1]) {
			return re.differ(what, pair[0], pair[1])
		}
	}
	return nil
}

// unlike are the names of the variables that are not the same in another environment. The values may be secret.
func unlike(of, other []model.EnvVar) []string {
	values := map[string]string{}
	for _, v := range other {
		values[v.Key] = v.Value
	}
	var out []string
	for _, v := range of {
		if value, ok := values[v.Key]; !ok || value != v.Value {
			out = append(out, v.Key)
		}
	}
	return out
}
