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

// UpdateQuotas changes limits of a container that exists, and adds those for what has none yet, all or nothing. restore
// makes them what they were before.
func (st *Store) UpdateQuotas(ctx context.Context, c *record.ContainerEntry,
	sizes map[string]string) (restore func() error, err error) {
	mounts, err := st.quotaMounts(c)
	if err != nil {
		return nil, err
	}
	groups, err := quota.Plan(sizes, quota.ID{}, 0, mounts)
	if err != nil {
		return nil, model.FieldUpdateDiskQuota.Wrong(err)
	}
	held := map[string]*quota.Grant{} // by directory
	for _, grant := range st.Quotas.Held(c.ID()) {
		for _, dir := range grant.Holders[c.ID()] {
			held[dir] = grant
		}
	}
	for _, g := range groups {
		dirs := st.quotaDirs(c, g, mounts)
		for _, dir := range dirs {
			if held[dir] != held[dirs[0]] {
				return nil, model.FieldUpdateDiskQuota.Wrong(fmt.Errorf(
					"%q are to share one limit, and an update cannot change which paths share a limit: %w",
					g.Paths, errdefs.ErrFailedPrecondition))
			}
		}
	}
	var changed []func() error // what undoes each change
	restore = func() error {
		var errs []error
		for _, back := range slices.Backward(changed) {
			errs = append(errs, back())
		}
		return errors.Join(errs...)
	}
	for _, g := range groups {
		dirs := st.quotaDirs(c, g, mounts)
		if before := held[dirs[0]]; before != nil {
			changed = append(changed, func() error {
				_, err := st.Quotas.Resize(c.ID(), dirs[0], before.Limit)
				return err
			})
			_, err = st.Quotas.Resize(c.ID(), dirs[0], g.Limit)
		} else {
			changed = append(changed, func() error { st.Quotas.Return(c.ID(), dirs...); return nil })
			var grant *quota.Grant
			if grant, err = st.Quotas.Take(ctx, c.ID(), quota.Want{Limit: g.Limit, Dirs: dirs}); err == nil {
				err = st.Quotas.Mark(ctx, grant.ID, dirs...)
			}
		}
		if err != nil {
			err = fmt.Errorf("disk quota of %q: %w", g.Paths, st.nameHolders(err))
			return nil, errors.Join(err, restore())
		}
	}
	return restore, nil
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
