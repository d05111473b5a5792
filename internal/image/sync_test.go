package image

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	rt "berth/internal/registrytest"
)

// bootsOnDisk are the boots in the database's records of layers, by key: those of layers that are not synced.
func (f *fixture) bootsOnDisk() map[string]string {
	f.t.Helper()
	boots := map[string]string{}
	err := f.db.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketLayers).ForEach(func(k, v []byte) error {
			var r layerRecord
			if err := json.Unmarshal(v, &r); err != nil {
				return err
			}
			if r.Boot != "" {
				boots[string(k)] = r.Boot
			}
			return nil
		})
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return boots
}

// pullUnsynced pulls an image, and returns with it not synced yet, and no sync under way until resume is called.
func (f *fixture) pullUnsynced(name string) (id string, resume func()) {
	f.t.Helper()
	f.syncing.mu.Lock()
	id = f.pull(name)
	if len(f.bootsOnDisk()) == 0 {
		f.t.Fatal("the layers of a pull are synced at once")
	}
	return id, f.syncing.mu.Unlock
}

// TestASyncWhoseRecordsAreNotWrittenIsTriedAgain: else the next boot does not believe the layers. Seen to fail where
// the layers were taken for synced before their records were.
func TestASyncWhoseRecordsAreNotWrittenIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	f.push("a:1", files("a", "a"))
	_, resume := f.pullUnsynced("a:1")
	// A database that takes no writes, of which the background sync learns too.
	whole := f.db.bolt
	path := filepath.Join(f.cfg.Root, databaseFile)
	f.db.commit.Lock()
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.db.bolt, err = bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	f.db.commit.Unlock()
	resume()
	for range 2 {
		if err := f.Sync(); err == nil {
			t.Error("a sync whose records cannot be written is no error")
		}
	}
	if u := f.Unsynced(); u.Layers != 1 {
		t.Errorf("what is not synced: %+v", u)
	}
	f.db.commit.Lock()
	if err := f.db.bolt.Close(); err != nil {
		t.Fatal(err)
	}
	if f.db.bolt, err = openRecords(path); err != nil {
		t.Fatal(err)
	}
	f.db.commit.Unlock()
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if left := f.bootsOnDisk(); len(left) > 0 {
		t.Errorf("the next boot does not believe %v", left)
	}
}

// TestWhatWasBeingWrittenWhenASyncFailedIsNeverTakenForSynced, though later syncs succeed, by another berthd too: the
// kernel has given up pages that it could not write. What is pulled later is synced. Seen to fail where a sync that
// succeeded was believed about all layers, and where no mark of the layer was left for the next berthd.
func TestWhatWasBeingWrittenWhenASyncFailedIsNeverTakenForSynced(t *testing.T) {
	f := newFixture(t)
	f.push("a:1", files("a", "a"))
	f.push("b:1", files("b", "b"))
	lost, resume := f.pullUnsynced("a:1")
	failures := 1
	f.syncing.fs = func(fd int) error {
		if fd != int(f.lock.Fd()) {
			t.Error("the descriptor is not the one that has been open since before the layers were written")
		}
		if failures--; failures >= 0 {
			return unix.EIO
		}
		return unix.Syncfs(fd)
	}
	resume()
	wantDoubt := func(when string) {
		t.Helper()
		wantErr(t, f.Sync(), errdefs.ErrDataLoss, "1 layers")
		if u := f.Unsynced(); u.Layers != 1 || u.Failure == "" {
			t.Errorf("%s: what is not synced: %+v", when, u)
		}
		if left := f.bootsOnDisk(); len(left) != 1 || left[f.index.image(lost).Layers[0]] == "" {
			t.Errorf("%s: not synced by the records: %v", when, left)
		}
	}
	f.eventually("the sync has failed", func() bool { return f.Unsynced().Failure != "" })
	wantDoubt("after a sync that failed")
	f.pull("b:1")
	wantDoubt("after a pull of another image")
	f.reopen()
	wantDoubt("after a restart")
	if err := f.Remove(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	f.pull("a:1")
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if u := f.Unsynced(); u.Layers != 0 || u.Failure != "" {
		t.Errorf("pulled again: %+v", u)
	}
}

// TestAVariantOfALayerThatIsInDoubtIsInDoubtToo, since it has the same files. Seen to fail without that.
func TestAVariantOfALayerThatIsInDoubtIsInDoubtToo(t *testing.T) {
	f := newFixture(t)
	f.push("plain:1", rt.Layer(rt.File("a/f", 0o644, "f")))
	f.push("above:1", rt.Layer(rt.Dir("a", 0o711)), rt.Layer(rt.File("a/f", 0o644, "f")))
	_, resume := f.pullUnsynced("plain:1")
	f.index.mu.Lock()
	f.index.doubt() // as a sync that has failed does
	f.index.mu.Unlock()
	resume()
	id := f.pull("above:1")
	wantErr(t, f.Sync(), errdefs.ErrDataLoss, "2 layers")
	left := f.bootsOnDisk()
	if layers := f.index.image(id).Layers; left[layers[0]] != "" || left[layers[1]] == "" {
		t.Errorf("not synced by the records: %v, of layers %v", left, layers)
	}
}

// TestACleanStopSyncsWhatWasPulled: a reboot, or a copy of the disk, may follow. Seen to fail, in half of the rounds,
// where a sync that was due when the store was closed did not begin.
func TestACleanStopSyncsWhatWasPulled(t *testing.T) {
	for range 8 {
		f := newFixture(t)
		f.push("a:1", files("a", "a"))
		f.push("b:1", files("b", "b"))
		first, pulled := true, make(chan struct{})
		f.syncing.fs = func(fd int) error {
			if first { // the next pull comes too late for this sync, which ends when the store is being closed
				first = false
				f.pull("b:1")
				close(pulled)
				<-f.ctx.Done()
			}
			return unix.Syncfs(fd)
		}
		f.pull("a:1")
		<-pulled
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if f.db.bolt, err = openRecords(filepath.Join(f.cfg.Root, databaseFile)); err != nil {
			t.Fatal(err)
		}
		if left := f.bootsOnDisk(); len(left) > 0 {
			t.Errorf("the next boot does not believe %v, which was pulled before a clean stop", left)
		}
		if err := f.db.bolt.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
