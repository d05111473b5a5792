package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/quota"
)

// book is a ledger of one holder.
type book struct {
	Quotas
	grants []*quota.Grant
}

func (b *book) Take(_ context.Context, holder string, w quota.Want) (*quota.Grant, error) {
	g := &quota.Grant{ID: quota.MinID + uint32(len(b.grants)), Limit: w.Limit,
		Holders: map[string][]string{holder: w.Dirs}}
	b.grants = append(b.grants, g)
	return g, nil
}

func (b *book) Mark(context.Context, uint32, ...string) error { return nil }

func (b *book) Resize(holder, dir string, bytes uint64) (bool, error) {
	for i, g := range b.grants {
		if slices.Contains(g.Holders[holder], dir) {
			next := *g
			next.Limit = bytes
			b.grants[i] = &next
			return true, nil
		}
	}
	return false, nil
}

func (b *book) Held(string) []*quota.Grant { return slices.Clone(b.grants) }

func (b *book) Return(holder string, dirs ...string) {
	b.grants = slices.DeleteFunc(b.grants, func(g *quota.Grant) bool { return slices.Equal(g.Holders[holder], dirs) })
}

// limits are those of the book in MiB, by the first directory that has each.
func (b *book) limits(holder string, names map[string]string) string {
	out := map[string]uint64{}
	for _, g := range b.grants {
		out[names[g.Holders[holder][0]]] = g.Limit >> 20
	}
	return fmt.Sprint(out) // sorted
}

// TestAnUpdateOfDiskQuotasIsPlannedWithWhatTheContainerHas: the keys for all do not take what another key names, also
// where only the container has that one, and no update changes which paths share a limit. The limits are those of the
// root file system, of the host directories /h and /i, and of the volume /data of the image, which a handler's limit
// has too. Seen to fail when the update alone was planned.
func TestAnUpdateOfDiskQuotasIsPlannedWithWhatTheContainerHas(t *testing.T) {
	type sizes = map[string]string
	for name, c := range map[string]struct {
		has, update sizes
		handler     uint64
		want        string
		refused     func(error) bool // nil: it is not
	}{
		"the key for each": {has: sizes{"/": "10m", ".*": "1m"}, update: sizes{".*": "2m"},
			want: "map[/:10 /data:2 /h:2 /i:2]"},
		"two are named": {has: sizes{"/": "10m", "/h": "1m", ".*": "5m"}, update: sizes{".*": "6m"},
			want: "map[/:10 /data:6 /h:1 /i:6]"},
		"a named one": {has: sizes{"/": "10m", "/h": "1m", ".*": "5m"}, update: sizes{"/h": "2m"},
			want: "map[/:10 /data:5 /h:2 /i:5]"},
		"the key for all": {has: sizes{"/": "10m", "": "20m"}, update: sizes{"": "30m"}, want: "map[/:10 /data:30]"},
		"another mount":   {has: sizes{"/": "10m"}, update: sizes{"/h": "4m"}, want: "map[/:10 /h:4]"},
		"each of the rest": {has: sizes{"/": "10m"}, update: sizes{".*": "4m"},
			want: "map[/:10 /data:4 /h:4 /i:4]"},
		"one of two that share": {has: sizes{"/&/h": "10m"}, update: sizes{"/h": "5m"}, want: "map[/:10]",
			refused: errdefs.IsFailedPrecondition},
		"two that do not share": {has: sizes{"/h": "10m"}, update: sizes{"/&/i": "5m", "/h": "1m"},
			want: "map[/:5 /h:1]"},
		"a new one of all that share": {has: sizes{"": "20m"}, update: sizes{"/h": "5m"}, want: "map[/:20]",
			refused: errdefs.IsFailedPrecondition},
		"all at once": {has: sizes{"/": "10m"}, update: sizes{"/&/h": "5m"}, want: "map[/:10]",
			refused: errdefs.IsFailedPrecondition},
		"each and all": {has: sizes{".*": "1m"}, update: sizes{"": "5m"}, want: "map[/:1 /data:1 /h:1 /i:1]",
			refused: errdefs.IsFailedPrecondition},
		"no mount": {has: sizes{"/": "10m"}, update: sizes{"/none": "5m"}, want: "map[/:10]",
			refused: errdefs.IsInvalidArgument},
		"no size": {has: sizes{"/": "10m"}, update: sizes{"/h": "much"}, want: "map[/:10]",
			refused: errdefs.IsInvalidArgument},
		"a handler's":       {handler: 9 << 20, update: sizes{"/": "12m"}, want: "map[/:12]"},
		"a handler's, both": {handler: 9 << 20, update: sizes{"/": "12m", "/data": "12m"}, want: "map[/:12]"},
		"a handler's, and another mount": {handler: 9 << 20, update: sizes{"/h": "2m"},
			want: "map[/:9 /h:2]"},
		"a handler's, two sizes": {handler: 9 << 20, update: sizes{"/": "12m", "/data": "2m"}, want: "map[/:9]",
			refused: errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			f, b := newFixture(t), &book{}
			f.Quotas = b
			host := map[string]string{"/h": t.TempDir(), "/i": t.TempDir()}
			entry := f.container(model.Mount{ContainerPath: "/h", HostPath: host["/h"]},
				model.Mount{ContainerPath: "/i", HostPath: host["/i"]})
			err := entry.Update(record.Draft, func(r *record.Container) {
				config := *r.Config
				config.Resources = &model.Resources{DiskQuota: c.has}
				r.Config, r.ImageVolumes = &config, []string{"/data"}
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.TakeQuotas(t.Context(), entry, quota.ID{}, c.handler); err != nil {
				t.Fatal(err)
			}
			names := map[string]string{host["/h"]: "/h", host["/i"]: "/i", f.Dirs.ImageVolume("c", 0): "/data"}
			mounts, err := f.quotaMounts(entry)
			if err != nil {
				t.Fatal(err)
			}
			names[f.quotaDirs(entry, quota.Group{Paths: []string{quota.Root}}, mounts)[0]] = "/"
			before := b.limits("c", names)
			merged := maps.Clone(c.has)
			if merged == nil {
				merged = sizes{}
			}
			maps.Copy(merged, c.update)
			restore, err := f.UpdateQuotas(t.Context(), entry, c.update, merged)
			if got := b.limits("c", names); got != c.want {
				t.Errorf("from %s to %s, want %s", before, got, c.want)
			}
			if c.refused != nil {
				if !c.refused(err) {
					t.Errorf("it is refused with %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := restore(); err != nil {
				t.Error(err)
			}
			if got := b.limits("c", names); got != before {
				t.Errorf("given back, it is %s, and was %s", got, before)
			}
		})
	}
}
