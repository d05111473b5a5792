package stage

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forkerOfLeader is what serve does when its goroutine is on the thread that the program began on.
var forkerOfLeader = &forker{work: make(chan func())}

// An init that locks its goroutine keeps main, and with it TestMain, on the first thread.
func init() { runtime.LockOSThread() }

// startForkerOfLeader is called by TestMain.
func startForkerOfLeader() {
	started := make(chan error, 1)
	forkerOfLeader.serve(nil, started)
	if err := <-started; err != nil {
		panic(err)
	}
}

func TestTheForkersTableIsItsOwn(t *testing.T) {
	kept, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	fresh, err := newForker(int(kept.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*forker{"new": fresh, "from the first thread": forkerOfLeader} {
		var files []*os.File
		for range 100 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files = append(files, f)
		}
		var open []os.DirEntry
		var keptErr error
		var thread int
		l.do(func() {
			thread = unix.Gettid()
			open, err = os.ReadDir("/proc/thread-self/fd")
			_, keptErr = unix.FcntlInt(kept.Fd(), unix.F_GETFD, 0)
		})
		if err != nil || len(open) > 10 {
			t.Errorf("%s: it has %d descriptors, %v", name, len(open), err)
		}
		if thread == unix.Getpid() {
			t.Errorf("%s: it is the first thread", name)
		}
		if l == fresh && keptErr != nil {
			t.Errorf("what was to be kept: %v", keptErr)
		}
		if _, err := unix.FcntlInt(files[99].Fd(), unix.F_GETFD, 0); err != nil {
			t.Errorf("%s: the program has lost a descriptor: %v", name, err)
		}
	}
}

// TestTheForkerForksWithWhatItTakes: the child's output arrives by a pipe of the program's own table.
func TestTheForkerForksWithWhatItTakes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var pid int
	forkerOfLeader.do(func() {
		fds := []int{int(w.Fd())}
		var closeAll func()
		closeAll, err = forkerOfLeader.take(fds, -1)
		defer closeAll()
		if err != nil {
			return
		}
		pid, err = syscall.ForkExec("/bin/sh", []string{"sh", "-c", "ls /proc/self/fd | wc -l"},
			&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, uintptr(fds[0]), 2}})
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(r)
	if string(said) != "4\n" || err != nil { // the standard three, and that of ls
		t.Errorf("it says %q, %v", said, err)
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

// TestGosRuntimeWorksOnTheForkersThread: what starts the world after a collection, or sets a timer, uses descriptors
// of Go's poller from whatever thread it is on. Seen to fail (epoll_wait: bad file descriptor) where the forker closes
// them.
func TestGosRuntimeWorksOnTheForkersThread(t *testing.T) {
	for range 20 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := r.Read(make([]byte, 1))
			read <- err
		}()
		time.Sleep(time.Millisecond)
		forkerOfLeader.do(func() {
			runtime.GC()
			timer := time.AfterFunc(time.Microsecond, func() { _, _ = w.Write([]byte{0}) })
			defer timer.Stop()
			time.Sleep(2 * time.Millisecond)
			runtime.GC()
		})
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		r.Close()
		w.Close()
	}
}

// TestOtherEventfdsAreNotKept: such as those that another program has left to this one.
func TestOtherEventfdsAreNotKept(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	l, err := newForker()
	if err != nil {
		t.Fatal(err)
	}
	l.do(func() { _, err = os.Readlink(filepath.Join("/proc/thread-self/fd", strconv.Itoa(fd))) })
	if !os.IsNotExist(err) {
		t.Errorf("the forker has descriptor %d: %v", fd, err)
	}
}
