package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// In a network namespace of its own: what forwards is the machine's.
func TestTheLastNodePutsTheMachineBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		path := filepath.Join(t.TempDir(), "host")
		// Locks are of open files: these are as good as processes.
		a, b, killed, after := claims{path: path}, claims{path: path}, claims{path: path}, claims{path: path}
		set := func(value string) {
			if err := os.WriteFile(forwarding[0], []byte(value), 0); err != nil {
				t.Error(err)
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		expect := func(when, want string, noted bool) {
			t.Helper()
			value, err := os.ReadFile(forwarding[0])
			if err != nil || strings.TrimSpace(string(value)) != want {
				t.Errorf("%s the machine forwards: %s, want %s (%v)", when, value, want, err)
			}
			if _, err := os.Stat(path); noted != !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s the note says: %v", when, err)
			}
		}
		for range 2 {
			set("0")
			must(a.claim())
			set("1")
			must(b.claim())
			must(a.claim())
			must(a.release())
			must(a.release())
			expect("while another process has a node", "1", true)
			must(b.release())
			expect("after the last node", "0", false)
		}
		set("1")
		must(a.claim())
		must(a.release())
		expect("where it did before", "1", false)

		set("0")
		must(killed.claim())
		set("1")
		must(killed.lock.Close())
		expect("after a kill", "1", true)
		must(after.claim())
		must(after.release())
		expect("after the next process", "0", false)

		killed.held = 0
		must(killed.claim())
		set("1")
		must(killed.lock.Close())
		must(a.claim())
		must(after.settle())
		expect("after a kill, while another process has a node", "1", true)
		must(a.lock.Close())
		must(after.settle())
		expect("after all were killed", "0", false)
	}()
	<-done
}
