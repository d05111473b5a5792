package image

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	rt "berth/internal/registrytest"
)

// cutPower has the power fail, and opens the store in the next boot: its records are those that are on the disk now,
// and layers that were not synced are of another boot. A sync that is under way then is let go by resume. With spoil,
// the database is spoilt too.
func (f *fixture) cutPower(resume func(), spoil bool) {
	f.t.Helper()
	root := f.t.TempDir()
	f.db.commit.Lock()
	err := os.CopyFS(root, os.DirFS(f.cfg.Root))
	f.db.commit.Unlock()
	resume()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.cfg.Root = root
	const earlier = "an earlier boot"
	for _, n := range f.layerDirs() {
		dir := filepath.Join(root, "layers", n)
		rec, err := readLayerRecord(dir)
		if err == nil {
			rec.Boot = earlier
			err = writeLayerRecord(dir, rec)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	path := filepath.Join(root, databaseFile)
	if spoil {
		if err := os.WriteFile(path, []byte("no database"), 0o600); err != nil {
			f.t.Fatal(err)
		}
		f.open()
		return
	}
	db, err := openRecords(path)
	if err != nil {
		f.t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		records := map[string]layerRecord{}
		err := tx.Bucket(bucketLayers).ForEach(func(k, v []byte) error {
			var r layerRecord
			err := json.Unmarshal(v, &r)
			if r.Boot != "" {
				r.Boot = earlier
				records[string(k)] = r
			}
			return err
		})
		for key, r := range records {
			if err == nil {
				err = put(tx, bucketLayers, key, r)
			}
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.open()
}

// unsyncedFrom pulls and syncs app:1, and holds back all later syncs until resume is called.
func (f *fixture) unsyncedFrom(opts ...rt.ImageOption) (id string, resume func()) {
	f.t.Helper()
	f.push("app:1", opts...)
	id = f.pull("app:1")
	if err := f.Sync(); err != nil {
		f.t.Fatal(err)
	}
	f.syncing.mu.Lock()
	resume = sync.OnceFunc(f.syncing.mu.Unlock)
	f.t.Cleanup(resume) // before the store is closed
	return id, resume
}

// holder is the image that has a name; empty: there is none.
func (f *fixture) holder(name string) string {
	img, err := f.Get(context.Background(), host+name)
	if err != nil {
		return ""
	}
	return img.ID
}

// TestAPowerFailureGivesAMovedTagBack to the image that had it, if it loses the image that took it: by a pull, by a
// chain of pulls, by Tag, and with a database that is spoilt too. Seen to fail, for each, where the record of the other
// image did not say which one had the tag.
func TestAPowerFailureGivesAMovedTagBack(t *testing.T) {
	for name, c := range map[string]struct {
		move  func(f *fixture)
		spoil bool
	}{
		"pull": {move: func(f *fixture) {
			f.push("app:1", files("v", "2"))
			f.pull("app:1")
		}},
		"two pulls": {move: func(f *fixture) {
			for _, v := range []string{"2", "3"} {
				f.push("app:1", files("v", v))
				f.pull("app:1")
			}
		}},
		"two pulls, and the image between is removed": {move: func(f *fixture) {
			f.push("app:1", files("v", "2"))
			between := f.pull("app:1")
			f.push("app:1", files("v", "3"))
			f.pull("app:1")
			if err := f.Remove(context.Background(), between); err != nil {
				t.Fatal(err)
			}
		}},
		"tag": {move: func(f *fixture) {
			f.push("other:1", files("v", "2"))
			if _, err := f.Tag(context.Background(), f.pull("other:1"), host+"app:1"); err != nil {
				t.Fatal(err)
			}
		}},
		"a spoilt database": {spoil: true, move: func(f *fixture) {
			f.push("app:1", files("v", "2"))
			id := f.pull("app:1")
			f.eventually("the files of the images are written", func() bool {
				var file imageFile
				err := f.db.files.LoadFile(imageFileID(id), f.db.files.File, &file)
				return err == nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			want, resume := f.unsyncedFrom(files("v", "1"))
			c.move(f)
			if got := f.holder("app:1"); got == want {
				t.Fatal("the tag did not move")
			}
			f.cutPower(resume, c.spoil)
			for _, when := range []string{"after the power failure", "after a restart"} {
				if got := f.holder("app:1"); got != want {
					t.Errorf("%s the tag is that of %q, and the image that had it is %s", when, got, want)
				}
				f.reopen()
			}
			if strings.Contains(f.logs.String(), "given back in memory only") {
				t.Error("the tag is not given back on disk")
			}
		})
	}
}

// TestATagStaysWhereItWasLeft: a power failure gives a tag back only if it loses the image that has it, and to the last
// one that is there. Seen to fail, for each, where the holders of before were not forgotten.
func TestATagStaysWhereItWasLeft(t *testing.T) {
	ctx := context.Background()
	for name, move := range map[string]func(f *fixture, resume func()) (want string, last func()){
		"the image that took it is synced": func(f *fixture, resume func()) (string, func()) {
			f.push("app:1", files("v", "2"))
			id := f.pull("app:1")
			resume()
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			if r := f.index.image(id); r.TakenFrom != nil {
				t.Errorf("the record of an image on disk has %v", r.TakenFrom)
			}
			return id, func() {}
		},
		"the image between is synced after it has lost the tag": func(f *fixture, resume func()) (string, func()) {
			f.push("app:1", files("v", "2"))
			id := f.pull("app:1")
			syncs, held := 0, make(chan struct{})
			f.syncing.fs = func(fd int) error {
				if syncs++; syncs == 1 { // the next pull comes too late for it
					f.push("app:1", files("v", "3"))
					f.pull("app:1")
				} else {
					<-held
				}
				return unix.Syncfs(fd)
			}
			f.syncs.Want()
			resume()
			f.eventually("the image between is synced, and it alone", func() bool {
				return f.index.image(id).TakenFrom == nil && len(f.bootsOnDisk()) == 1
			})
			resume = sync.OnceFunc(func() { close(held) })
			f.t.Cleanup(resume)
			return id, resume
		},
		"a client took it away": func(f *fixture, resume func()) (string, func()) {
			f.push("app:1", files("v", "2"))
			if _, err := f.Tag(ctx, f.pull("app:1"), host+"app:2"); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Untag(ctx, host+"app:1"); err != nil {
				t.Fatal(err)
			}
			return "", resume
		},
		"a client removed the image": func(f *fixture, resume func()) (string, func()) {
			f.push("app:1", files("v", "2"))
			id := f.pull("app:1")
			if _, err := f.AddReference(id, "container"); err != nil {
				t.Fatal(err)
			}
			if err := f.Remove(ctx, id); err != nil {
				t.Fatal(err)
			}
			return "", resume
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			_, resume := f.unsyncedFrom(files("v", "1"))
			want, resume := move(f, resume)
			f.cutPower(resume, false)
			if got := f.holder("app:1"); got != want {
				t.Errorf("the tag is that of %q, not of %q", got, want)
			}
		})
	}
}

// TestATagIsGivenBackOnce, also if berthd ends before it has forgotten the lost image: a client that takes it away then
// does so for good. Seen to fail where the record of the lost image stayed as it was.
func TestATagIsGivenBackOnce(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	want, resume := f.unsyncedFrom(files("v", "1"))
	if _, err := f.Tag(ctx, want, host+"app:2"); err != nil {
		t.Fatal(err)
	}
	f.push("app:1", files("v", "2"))
	f.pull("app:1")
	f.cutPower(resume, false)
	if got := f.holder("app:1"); got != want {
		t.Fatalf("the tag is that of %q, not of %q", got, want)
	}
	if _, err := f.Untag(ctx, host+"app:1"); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	if got := f.holder("app:1"); got != "" {
		t.Errorf("the tag is that of %q again", got)
	}
}

// TestACheckpointIsOneByATagThatIsGivenBack: otherwise a container of the image would be started as a usual one. Seen
// to fail where only the ID of the image was kept.
func TestACheckpointIsOneByATagThatIsGivenBack(t *testing.T) {
	f := newFixture(t)
	want, resume := f.unsyncedFrom(files("v", "1"), rt.Annotation(checkpointAnnotation, "c1"))
	f.push("app:1", files("v", "2"))
	f.pull("app:1")
	f.cutPower(resume, false)
	img, err := f.Get(context.Background(), host+"app:1")
	if err != nil {
		t.Fatal(err)
	}
	if img.ID != want || img.Checkpoint != "c1" {
		t.Errorf("image %s, checkpoint of %q", img.ID, img.Checkpoint)
	}
}
