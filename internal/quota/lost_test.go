package quota

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// kernel has project quotas in memory: each directory is one file.
type kernel struct {
	projects map[string]uint32
	limits   map[uint32]uint64
}

// fakeKernel has the ledgers of a test use a kernel in memory.
func fakeKernel(t *testing.T) *kernel {
	k := &kernel{projects: map[string]uint32{}, limits: map[uint32]uint64{}}
	oldCheck, oldProject, oldUsage, oldGive, oldLimit := check, projectOf, usageOf, give, limit
	t.Cleanup(func() { check, projectOf, usageOf, give, limit = oldCheck, oldProject, oldUsage, oldGive, oldLimit })
	check = func(string) error { return nil }
	projectOf = func(dir string) (uint32, error) { return k.projects[dir], nil }
	usageOf = func(_ string, id uint32) (Usage, error) {
		u := Usage{Limit: k.limits[id]}
		for _, has := range k.projects {
			if has == id {
				u.Inodes++
			}
		}
		return u, nil
	}
	give = func(_ context.Context, dir string, id, only uint32) error {
		if only == 0 || k.projects[dir] == only {
			k.projects[dir] = id
		}
		return nil
	}
	limit = func(_ string, id uint32, bytes uint64) error { k.limits[id] = bytes; return nil }
	return k
}

// TestADirectoryIsLimitedAgainAfterItsRecordIsLost, with or without what is left of the record: a volume, and a
// directory of the host, outlive the container. Seen to fail when a broken record was removed, and its ID was taken for
// that of another program.
func TestADirectoryIsLimitedAgainAfterItsRecordIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		lose     func(t *testing.T, record string)
		hostDirs bool // are given another ID too
	}{
		"damaged": {hostDirs: true, lose: func(t *testing.T, record string) {
			for _, file := range []string{"quota.json", "quota.json.spare"} {
				if err := os.WriteFile(filepath.Join(record, file), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"gone": {lose: func(t *testing.T, record string) {
			if err := os.RemoveAll(record); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k, root, host := fakeKernel(t), t.TempDir(), t.TempDir()
			volume, layer := folder(t, root, "volume"), folder(t, root, "layer")
			l := ledger(t, root)
			old := take(t, l, "c", Want{Limit: 8 << 20, Dirs: []string{volume, layer, host}})
			markAll(t, l, old, volume, layer, host)
			l.Close()
			c.lose(t, l.records.Path(recordName(old.ID)))

			var log bytes.Buffer
			l, err := Open(t.Context(), l.records.Dir, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			l.Reconcile(func(string) bool { return true })
			l.work.Wait()
			if k.limits[old.ID] != 8<<20 {
				t.Error("what the container has is not limited any more")
			}
			next := take(t, l, "d", Want{Limit: 4 << 20, Dirs: []string{volume}})
			if next.ID == old.ID {
				t.Fatal("the ID that directories have is given again")
			}
			markAll(t, l, next, volume)
			if k.projects[volume] != next.ID || k.projects[layer] != old.ID || k.limits[old.ID] != 8<<20 {
				t.Errorf("marked: %v, limits: %v", k.projects, k.limits)
			}
			if got := log.String(); !strings.Contains(got, "directory="+volume) {
				t.Errorf("the log says %s", got)
			}
			delete(k.projects, layer) // with its container
			other := take(t, l, "e", Want{Limit: 4 << 20, Dirs: []string{host}})
			err = l.Mark(t.Context(), other.ID, host)
			if !c.hostDirs {
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "chattr") || k.projects[host] != old.ID {
					t.Errorf("a directory with an ID that may be of another program: %v", err)
				}
				return
			}
			if err != nil || k.projects[host] != other.ID || k.limits[old.ID] != 0 || l.grants[old.ID] != nil {
				t.Errorf("the last directory: %v, marked: %v, limits: %v", err, k.projects, k.limits)
			}
			if _, err := os.Lstat(l.records.Path(recordName(old.ID))); !os.IsNotExist(err) {
				t.Errorf("an ID that nothing has is on record: %v", err)
			}
		})
	}
}

// TestAnIDOfSomebodyElseStays: of another holder, of a number that Berth does not give, and of all of Berth's root.
func TestAnIDOfSomebodyElseStays(t *testing.T) {
	k, root := fakeKernel(t), t.TempDir()
	l := ledger(t, root)
	dir, held := folder(t, root, "dir"), folder(t, root, "held")
	mine := take(t, l, "c", Want{Limit: 1 << 20, Dirs: []string{dir}})
	theirs := take(t, l, "d", Want{Limit: 1 << 20, Dirs: []string{held}})
	k.projects[root] = MinID + 500
	for name, id := range map[string]uint32{"another holder": theirs.ID, "low": 5, "the root's": MinID + 500} {
		k.projects[dir] = id
		if err := l.Mark(t.Context(), mine.ID, dir); !errdefs.IsFailedPrecondition(err) || k.projects[dir] != id {
			t.Errorf("%s: %v, it has %d", name, err, k.projects[dir])
		}
	}
}

// TestALostIDIsForgottenOnceNothingHasIt, by the next start, and a client may choose it before.
func TestALostIDIsForgottenOnceNothingHasIt(t *testing.T) {
	k, root := fakeKernel(t), t.TempDir()
	dir := folder(t, root, "layer")
	k.projects[dir], k.limits[MinID+7] = MinID+7, 1<<20
	folder(t, root, "quotas", recordName(MinID+7))
	folder(t, root, "quotas", "none")
	open := func() *Ledger {
		l := ledger(t, root)
		l.Reconcile(func(string) bool { return true })
		l.work.Wait()
		return l
	}
	l := open()
	if l.grants[MinID+7] == nil || k.limits[MinID+7] != 1<<20 {
		t.Error("it is forgotten while a file has it")
	}
	l.Close()
	l = open()
	if g := l.grants[MinID+7]; g == nil || !g.lost() {
		t.Errorf("the next start has %+v", g)
	}
	chosen := take(t, l, "c", Want{ID: ID{Number: MinID + 7}, Limit: 2 << 20, Dirs: []string{folder(t, root, "new")}})
	if chosen.lost() || chosen.Lost || k.limits[MinID+7] != 2<<20 {
		t.Errorf("a client that chooses it gets %+v", chosen)
	}
	l.Release("c")
	l.work.Wait()
	k.limits[MinID+8] = 1 << 20
	folder(t, root, "quotas", recordName(MinID+8))
	l.Close()
	open()
	if left, err := os.ReadDir(l.records.Dir); err != nil || len(left) != 0 || k.limits[MinID+8] != 0 {
		t.Errorf("left: %v, %v, limits %v", left, err, k.limits)
	}
}
