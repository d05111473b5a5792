package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What was flushed is there after a cut, and what was not is there in part. Seen to fail where Flush does nothing.
func TestACutCostsWhatWasNotFlushed(t *testing.T) {
	for seed := range int64(100) {
		d := New(1 << 20)
		block := func(b byte) []byte { return bytes.Repeat([]byte{b}, 4*sector) }
		_, _ = d.WriteAt(block('a'), 100*sector)
		d.Flush()
		for at := range int64(32) {
			_, _ = d.WriteAt(block('b'), at*4*sector)
		}
		d.Cut(rand.New(rand.NewSource(seed)))
		_, _ = d.WriteAt(block('c'), 0)
		d.Flush()
		d.Restore()
		got := make([]byte, d.Size())
		_, _ = d.ReadAt(got, 0)
		if bytes.ContainsRune(got, 'c') {
			t.Fatalf("seed %d: what was written without power has lasted", seed)
		}
		kept := bytes.Count(got, []byte{'b'})
		if c := d.Count(); kept%sector != 0 || c.Kept+c.Dropped+c.Torn != 32 || kept < c.Kept*4*sector {
			t.Fatalf("seed %d: %d bytes are there after %+v", seed, kept, c)
		}
		for _, b := range got[100*sector : 104*sector] {
			if b != 'a' && b != 'b' {
				t.Fatalf("seed %d: what was flushed is lost: %q", seed, b)
			}
		}
	}
}

// The kernel passes the flushes of a real file system on: what was synced is there after each cut, and the file system
// can be mounted again.
func TestAFileSystemOnItKeepsWhatWasSynced(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			m := &Mounted{Disk: New(320 << 20), Kind: kind, Dir: t.TempDir()}
			if err := m.Make(); err != nil {
				t.Skip(err)
			}
			r := rand.New(rand.NewSource(1))
			for i := range 6 {
				if err := m.Mount(); err != nil {
					t.Fatal(err)
				}
				for n := range i {
					got, err := os.ReadFile(filepath.Join(m.At(), fmt.Sprint(n)))
					if err != nil || len(got) != 1<<20 || bytes.Count(got, []byte{byte(n)}) != len(got) {
						t.Errorf("after cut %d: file %d has %d bytes, %v", i, n, len(got), err)
					}
				}
				synced, err := os.Create(filepath.Join(m.At(), fmt.Sprint(i)))
				if err == nil {
					_, err = synced.Write(bytes.Repeat([]byte{byte(i)}, 1<<20))
				}
				err = errors.Join(err, synced.Sync(), synced.Close(),
					os.WriteFile(filepath.Join(m.At(), fmt.Sprintf("unsynced%d", i)), make([]byte, 1<<20), 0o600))
				if err != nil {
					t.Fatal(err)
				}
				m.Disk.Cut(r)
				if err := m.Unmount(10 * time.Second); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%+v", m.Disk.Count())
		})
	}
}
