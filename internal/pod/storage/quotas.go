package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/quota"
	"berth/internal/rootfs"
)

// CheckQuotas refuses disk quotas that mean nothing.
func CheckQuotas(cfg *model.ContainerConfig) (quota.ID, error) {
	if cfg.Resources != nil {
		if err := quota.CheckSizes(cfg.Resources.DiskQuota); err != nil {
			return quota.ID{}, model.FieldContainerDiskQuota.Wrong(err)
		}
	}
	id, err := model.ParseQuotaID(cfg.QuotaID)
	if err != nil {
		return quota.ID{}, model.FieldContainerQuotaID.Wrong(err)
	}
	return id, nil
}

// imageVolumes are the volumes that a container has because its image declares them.
func (st *Store) imageVolumes(c *record.ContainerEntry) []quota.Mount {
	var mounts []quota.Mount
	for i, p := range c.Record().ImageVolumes {
		mounts = append(mounts, quota.Mount{Path: p, Source: st.Dirs.ImageVolume(c.ID(), i), Dir: true, OfImage: true})
	}
	return mounts
}

// quotaMounts are a container's mounts as far as disk quotas care.
func (st *Store) quotaMounts(c *record.ContainerEntry) ([]quota.Mount, error) {
	r, mounts := c.Record(), st.imageVolumes(c)
	for i, mount := range r.Config.Mounts {
		q := quota.Mount{Path: path.Clean(mount.ContainerPath), ReadOnly: mount.Readonly || mount.Image != nil, Dir: true}
		switch {
		case mount.Volume != "":
			q.Source = st.Volumes.Path(mount.Volume)
		case mount.Image == nil:
			source, err := hostpath.Resolve(mount.HostPath)
			if err != nil {
				if !errdefs.IsUnavailable(err) {
					err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
				}
				return nil, mountField(i).Wrong(err)
			}
			q.Source, q.Dir = source.Path, source.Dir
		}
		mounts = append(mounts, q)
	}
	return mounts, nil
}

// quotaDirs are the directories of a group of container paths. That of the root file system are its writable layer's.
func (st *Store) quotaDirs(c *record.ContainerEntry, g quota.Group, mounts []quota.Mount) []string {
	var dirs []string
	for _, p := range g.Paths {
		if p == quota.Root {
			dirs = append(dirs, rootfs.WritableDirs(st.Dirs.Container(c.ID()))...)
			continue
		}
		at := slices.IndexFunc(mounts, func(q quota.Mount) bool { return q.Path == p })
		dirs = append(dirs, mounts[at].Source)
	}
	return dirs
}

// Limits are the project IDs of a container that is being created.
type Limits struct {
	byPath map[string]uint32 // container paths
	byDir  map[string]uint32
}

// TakeQuotas gives a container the disk quotas that it asks for, and its handler's. Nothing is marked yet.
func (st *Store) TakeQuotas(ctx context.Context, c *record.ContainerEntry, id quota.ID,
	rootSize uint64) (*Limits, error) {
	q := &Limits{byPath: map[string]uint32{}, byDir: map[string]uint32{}}
	cfg := c.Record().Config
	var sizes map[string]string
	if cfg.Resources != nil {
		sizes = cfg.Resources.DiskQuota
	}
	mounts := st.imageVolumes(c)
	if len(sizes) > 0 {
		var err error
		if mounts, err = st.quotaMounts(c); err != nil {
			return nil, err
		}
	}
	groups, err := quota.Plan(sizes, id, rootSize, mounts)
	if err != nil {
		return nil, model.FieldContainerDiskQuota.Wrong(err)
	}
	for _, g := range groups {
		dirs := st.quotaDirs(c, g, mounts)
		grant, err := st.Quotas.Take(ctx, c.ID(), quota.Want{ID: g.ID, Limit: g.Limit, Dirs: dirs})
		if err != nil {
			return nil, fmt.Errorf("disk quota of %q: %w", g.Paths, st.nameHolders(err))
		}
		for _, p := range g.Paths {
			q.byPath[p] = grant.ID
		}
		for _, dir := range dirs {
			q.byDir[dir] = grant.ID
		}
		if g.ID != (quota.ID{}) {
			err := c.Update(record.Draft, func(r *record.Container) { r.QuotaID = strconv.FormatUint(uint64(grant.ID), 10) })
			if err != nil {
				return nil, err
			}
		}
	}
	return q, nil
}

// Prepare marks a new volume, so that all that it is filled with bears its ID from the beginning.
func (q *Limits) Prepare(ledger Quotas) func(ctx context.Context, at, dir string) error {
	return func(ctx context.Context, at, dir string) error {
		if id, limited := q.byPath[at]; limited {
			return ledger.Mark(ctx, id, dir)
		}
		return nil
	}
}

// Mark marks what was there before.
func (q *Limits) Mark(ctx context.Context, ledger Quotas) error {
	for _, dir := range slices.Sorted(maps.Keys(q.byDir)) {
		if err := ledger.Mark(ctx, q.byDir[dir], dir); err != nil {
			return err
		}
	}
	return nil
}

// UpdateQuotas changes limits of a container that exists, and adds those for what has none yet, all or nothing. sizes
// are what the update says, and merged what holds with it: the keys that the container has already take part in the
// plan, as at its creation. restore makes the limits what they were before.
func (st *Store) UpdateQuotas(ctx context.Context, c *record.ContainerEntry,
	sizes, merged map[string]string) (restore func() error, err error) {
	wants, err := st.changedQuotas(c, sizes, merged)
	if err != nil {
		return nil, err
	}
	var changed []func() error // what undoes each change
	restore = func() error {
		var errs []error
		for _, back := range slices.Backward(changed) {
			errs = append(errs, back())
		}
		return errors.Join(errs...)
	}
	for _, w := range wants {
		if w.held != nil {
			changed = append(changed, func() error {
				_, err := st.Quotas.Resize(c.ID(), w.dirs[0], w.held.Limit)
				return err
			})
			_, err = st.Quotas.Resize(c.ID(), w.dirs[0], w.group.Limit)
		} else {
			changed = append(changed, func() error { st.Quotas.Return(c.ID(), w.dirs...); return nil })
			var grant *quota.Grant
			if grant, err = st.Quotas.Take(ctx, c.ID(), quota.Want{Limit: w.group.Limit, Dirs: w.dirs}); err == nil {
				err = st.Quotas.Mark(ctx, grant.ID, w.dirs...)
			}
		}
		if err != nil {
			err = fmt.Errorf("disk quota of %q: %w", w.group.Paths, st.nameHolders(err))
			return nil, errors.Join(err, restore())
		}
	}
	return restore, nil
}

// newLimit is a limit that an update changes or adds.
type newLimit struct {
	group quota.Group
	dirs  []string
	held  *quota.Grant // nil: the directories have no limit yet
}

// changedQuotas are the limits that differ from what the container holds. It refuses an update after which other paths
// would share a limit than now: errdefs.ErrFailedPrecondition.
func (st *Store) changedQuotas(c *record.ContainerEntry, sizes, merged map[string]string) ([]newLimit, error) {
	if err := quota.CheckSizes(sizes); err != nil {
		return nil, model.FieldUpdateDiskQuota.Wrong(err)
	}
	if err := quota.CheckSizes(merged); err != nil { // each of them is right, so they contradict one another
		return nil, shareOtherwise("with the sizes that the container has, %v", err)
	}
	mounts, err := st.quotaMounts(c)
	if err != nil {
		return nil, err
	}
	groups, err := quota.Plan(merged, quota.ID{}, 0, mounts)
	if err != nil {
		return nil, model.FieldUpdateDiskQuota.Wrong(err)
	}
	held := map[string]*quota.Grant{} // by directory
	for _, grant := range st.Quotas.Held(c.ID()) {
		for _, dir := range grant.Holders[c.ID()] {
			held[dir] = grant
		}
	}
	limits := map[string]quota.Group{} // by directory
	var changed []newLimit
	for _, g := range groups {
		w := newLimit{group: g, dirs: st.quotaDirs(c, g, mounts)}
		w.held = held[w.dirs[0]]
		together := w.dirs
		if w.held != nil {
			together = w.held.Holders[c.ID()]
		}
		for _, dir := range w.dirs {
			if held[dir] != w.held {
				return nil, shareOtherwise("%q are to share one limit", g.Paths)
			}
		}
		if !st.shares(c, w.dirs, together) {
			return nil, shareOtherwise("%q are to have a limit without others that share it", g.Paths)
		}
		for _, dir := range together {
			if other, taken := limits[dir]; taken && other.Limit != g.Limit {
				return nil, shareOtherwise("%q and %q have one limit, and are to have two sizes", other.Paths, g.Paths)
			}
			limits[dir] = g
		}
		if w.held == nil || w.held.Limit != g.Limit {
			changed = append(changed, w)
		}
	}
	return changed, nil
}

// shareOtherwise refuses an update for want of the same groups as at the creation.
func shareOtherwise(format string, args ...any) error {
	return model.FieldUpdateDiskQuota.Wrong(fmt.Errorf(format+
		", and an update cannot change which paths share a limit: %w", append(args, errdefs.ErrFailedPrecondition)...))
}

// shares tells whether directories may get a limit that others have with them: there are no others, or it is the limit
// of a handler, which the root file system and the volumes of the image share without a key that says so.
func (st *Store) shares(c *record.ContainerEntry, dirs, together []string) bool {
	root := rootfs.WritableDirs(st.Dirs.Container(c.ID()))
	handlers := slices.Clone(root)
	for _, volume := range st.imageVolumes(c) {
		handlers = append(handlers, volume.Source)
	}
	for _, dir := range together {
		if !slices.Contains(dirs, dir) && !(slices.Contains(together, root[0]) && slices.Contains(handlers, dir)) {
			return false
		}
	}
	return true
}

// nameHolders names the containers in an error that knows them by their IDs.
func (st *Store) nameHolders(err error) error {
	var held *quota.HeldError
	if errors.As(err, &held) {
		named := *held
		named.Holders = st.Names(held.Holders)
		return &named
	}
	return err
}
