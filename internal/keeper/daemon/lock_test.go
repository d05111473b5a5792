package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
)

// held makes the directory of a keeper whose lock somebody has, and whose file names a process.
func held(t *testing.T, pid int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f, err := os.Create(filepath.Join(dir, protocol.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	start, err := pidfd.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(f, pid, start); err != nil {
		t.Fatal(err)
	}
	return dir
}

// launch starts a program, which is reaped at the end of the test.
func launch(t *testing.T, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestTheLockIsTakenFromAKeeperThatWasKilled and keeps it, as one of which a thread hangs; by one keeper of two that
// try. Seen to fail without a new file: neither had the lock.
func TestTheLockIsTakenFromAKeeperThatWasKilled(t *testing.T) {
	pid := launch(t, "true")
	for deadline := time.Now().Add(time.Minute); !pidfd.Killed(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program does not end")
		}
	}
	dir := held(t, pid)
	var mu sync.Mutex
	var got []*lock
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			l, err := acquire(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, l)
		})
	}
	both.Wait()
	if len(got) != 1 {
		t.Fatalf("%d keepers have the lock", len(got))
	}
	defer got[0].file.Close()
	if len(got[0].before) != 1 || got[0].before[0].pid != pid {
		t.Errorf("the keepers before are %v, want %d", got[0].before, pid)
	}
	select {
	case <-got[0].ended: // a zombie without threads
	case <-time.After(time.Minute):
		t.Error("the end of the keeper before is not seen")
	}
	own, err := os.ReadFile(filepath.Join(dir, protocol.LockFile))
	named, rerr := readLock(got[0].file)
	if err != nil || rerr != nil || len(named) != 2 || named[0].pid != os.Getpid() {
		t.Errorf("the lock's file has %q: %v, %v", own, err, rerr)
	}
}

// TestTheLockIsNeverTakenFromAKeeperThatLives, nor from one that nobody knows.
func TestTheLockIsNeverTakenFromAKeeperThatLives(t *testing.T) {
	living := held(t, launch(t, "sleep", "1000"))
	unknown := held(t, os.Getpid())
	if err := os.Truncate(filepath.Join(unknown, protocol.LockFile), 0); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, dir := range []string{living, unknown} {
		all.Go(func() {
			if l, err := acquire(dir, slog.New(slog.DiscardHandler)); err == nil {
				l.file.Close()
				t.Errorf("the lock of %s was taken", dir)
			}
		})
	}
	all.Wait()
}
