package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/network/testhost"
	"berth/internal/throwaway"
)

// rangeLocks returns the lock files that are left on the host.
func rangeLocks(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(lockDir, "berth-pod-range-*"))
	testhost.Check(t, err)
	path, err := rangeLockPath()
	testhost.Check(t, err)
	var own []string
	for _, file := range left {
		if file == path { // others are of tests that run on the same machine
			own = append(own, file)
		}
	}
	return own
}

// TestNoOtherUserKeepsPodsFromTheirRange: a user of the node holds whatever names and locks it can, and the first pod
// gets its network. Seen to fail with an abstract socket as the lock.
func TestNoOtherUserKeepsPodsFromTheirRange(t *testing.T) {
	path, err := rangeLockPath()
	testhost.Check(t, err)
	held, done, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = throwaway.Thread(func() error {
			// The rights of this thread alone.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				held <- errno
				return errno
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				defer unix.Close(fd)
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@berth/pod-ranges"})
			}
			for _, file := range []string{path, lockDir, "/proc/thread-self/ns/net"} {
				for _, flags := range []int{unix.O_RDWR | unix.O_CREAT, unix.O_RDONLY} {
					if fd, err := unix.Open(file, flags|unix.O_CLOEXEC, 0o666); err == nil {
						defer unix.Close(fd)
						_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
					}
				}
			}
			held <- err
			<-done
			return nil
		})
	}()
	defer func() { close(done); <-ended }()
	testhost.Check(t, <-held)
	b := open(t, Config{Name: "brlock", StateDir: t.TempDir()})
	if _, err := b.Attach(ctx, Endpoint{ID: "pod", NetNS: testhost.Namespace(t)}); err != nil {
		t.Error(err)
	}
	testhost.Check(t, b.Health())
	if left := rangeLocks(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestOneDaemonAtATimeChoosesARange, whoever waits, and nothing of the lock is left.
func TestOneDaemonAtATimeChoosesARange(t *testing.T) {
	var all sync.WaitGroup
	var inside atomic.Int32
	for range 20 {
		all.Go(func() {
			for range 20 {
				unlock, err := lockRanges(ctx, testhost.Logger())
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				time.Sleep(100 * time.Microsecond)
				inside.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
	if left := rangeLocks(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestTheLockOfARangeEndsWithItsHolder, also one that is killed, whose file the next one uses and removes.
func TestTheLockOfARangeEndsWithItsHolder(t *testing.T) {
	path, err := rangeLockPath()
	testhost.Check(t, err)
	holder := exec.Command("flock", path, "sh", "-c", "echo locked; exec cat")
	in, err := holder.StdinPipe()
	testhost.Check(t, err)
	defer in.Close()
	out, err := holder.StdoutPipe()
	testhost.Check(t, err)
	testhost.Check(t, holder.Start())
	locked := make([]byte, 7)
	if _, err := out.Read(locked); err != nil {
		t.Fatal(err)
	}
	testhost.Check(t, os.Chmod(path, 0o600)) // flock makes it for all to read
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := lockRanges(short, testhost.Logger()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another has the lock: %v", err)
	}
	testhost.Check(t, holder.Process.Kill())
	in.Close() // cat, which has the lock as well, ends
	_ = holder.Wait()
	unlock, err := lockRanges(ctx, testhost.Logger())
	testhost.Check(t, err)
	unlock()
	if left := rangeLocks(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestWhatIsInTheLocksPlace is an error that says what to remove, and is neither followed nor opened for good.
func TestWhatIsInTheLocksPlace(t *testing.T) {
	defer func(dir string) { lockDir = dir }(lockDir)
	lockDir = t.TempDir()
	path, err := rangeLockPath()
	testhost.Check(t, err)
	target := filepath.Join(lockDir, "target")
	for what, plant := range map[string]func() error{
		"a link":             func() error { return os.Symlink(target, path) },
		"a pipe":             func() error { return unix.Mkfifo(path, 0o600) },
		"a file of all":      func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) },
		"a file of somebody": func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 7, 7)) },
	} {
		testhost.Check(t, plant())
		if _, err := lockRanges(ctx, testhost.Logger()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
		testhost.Check(t, os.Remove(path))
	}
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("the target of the link: %v", err)
	}
}

// TestAPlaceThatTakesNoFiles does not keep pods from their range.
func TestAPlaceThatTakesNoFiles(t *testing.T) {
	defer func(dir string) { lockDir = dir }(lockDir)
	lockDir = t.TempDir()
	testhost.Check(t, unix.Mount("none", lockDir, "tmpfs", unix.MS_RDONLY, "size=4k"))
	defer unix.Unmount(lockDir, unix.MNT_DETACH)
	for i, dir := range []string{lockDir, filepath.Join(lockDir, "absent")} {
		lockDir = dir
		b := open(t, Config{Name: fmt.Sprintf("brro%d", i), StateDir: t.TempDir()})
		attach(t, b, "pod")
	}
}
