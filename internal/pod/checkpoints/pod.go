package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
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

// CheckOutput refuses a directory in which no checkpoint of a pod can be put: its path is not absolute, it is not there
// or not empty, or others than root can write to it. The error is errdefs.ErrInvalidArgument.
func CheckOutput(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("output path %q is not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("output path %s: there is no such directory (%w): %w", dir, err, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("output path %s: others than root can write to it: %w", dir, errdefs.ErrInvalidArgument)
	}
	if names, _ := f.Readdirnames(1); len(names) > 0 {
		return fmt.Errorf("output path %s is not empty: %w", dir, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Pod writes a checkpoint of a pod's containers to an empty directory. All of them stand still before the first is
// written down, and until the last is. The records of the containers name what is made, so that Clean removes it when
// this fails.
func (k *Checkpointer) Pod(ctx context.Context, pod *model.SandboxMetadata, members []*Member, dir string) error {
	for i, m := range members {
		m.dir = filepath.Join(dir, checkpoint.ContainerDir(i))
		err := m.Container.Update(record.Save, func(r *record.Container) {
			r.CheckpointTemp, r.CheckpointPod = m.dir, filepath.Join(dir, checkpoint.PodFile)
		})
		if err != nil {
			return err
		}
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
	return checkpoint.WritePod(dir, &found)
}

// cut freezes all containers, writes each down and copies its files, and thaws them all.
func (k *Checkpointer) cut(ctx context.Context, members []*Member) (err error) {
	begin := time.Now()
	defer func() {
		end, cancel := undo.Context(ctx)
		defer cancel()
		err = errors.Join(err, each(members, len(members), func(m *Member) error {
			if m.thaw == nil {
				return nil
			}
			return m.thaw(end)
		}))
		if err == nil {
			k.Log.Info("a pod was written down", "pod_id", new(members[0].Container.Record()).SandboxID,
				"stood_still_ms", liblog.Milliseconds(time.Since(begin)))
		}
	}()
	deadline, _ := ctx.Deadline()
	err = each(members, len(members), func(m *Member) (err error) {
		m.nonce, m.thaw, err = k.Keeper.Freeze(ctx, m.Container.ID(), time.Until(deadline))
		return err
	})
	if err != nil {
		return err
	}
	return each(members, runtime.GOMAXPROCS(0), func(m *Member) error {
		err := ctx.Err()
		if err == nil {
			err = k.writeDown(ctx, m, time.Until(deadline))
		}
		return err
	})
}

// each calls fn for each container of a pod, for at most so many at a time. Its error names the container.
func each(members []*Member, most int, fn func(*Member) error) error {
	var all errgroup.Group
	all.SetLimit(most)
	errs := make([]error, len(members))
	for i, m := range members {
		all.Go(func() error {
			if err := fn(m); err != nil {
				errs[i] = fmt.Errorf("container %s: %w", new(m.Container.Record()).Config.Metadata.Name, err)
			}
			return nil
		})
	}
	_ = all.Wait()
	return errors.Join(errs...)
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

// Keep ends what Pod has begun: the checkpoint is the caller's.
func (k *Checkpointer) Keep(members []*Member) error {
	var errs []error
	for _, m := range members {
		errs = append(errs, m.Container.Update(record.Save, func(r *record.Container) {
			r.CheckpointTemp, r.CheckpointPod = "", ""
		}))
	}
	return errors.Join(errs...)
}

// FindIn reads the checkpoint of a container in that of a pod, in the directory dir, as Find does. The image that the
// configuration names must be the one that the container had.
func (k *Checkpointer) FindIn(ctx context.Context, cfg *model.ContainerConfig, dir string,
	of *checkpoint.PodContainer) (*model.Image, *Restoring, error) {
	dir = filepath.Join(dir, of.Directory)
	info, err := checkpoint.ReadDir(dir)
	if at := (*fs.PathError)(nil); errors.As(err, &at) { // it is not there, or a link
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
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
