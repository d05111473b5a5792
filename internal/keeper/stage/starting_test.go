package stage

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAFrozenCgroupHoldsUpNoStart: a process whose cgroup of version 2 is frozen, or has no processor time, does not
// run before it has executed anything. The keeper does not wait for it, and can end it.
//
// Seen to fail where the keeper created the process in its cgroup: Begin and Join waited until it was thawed.
func TestAFrozenCgroupHoldsUpNoStart(t *testing.T) {
	l := newLab(t)
	if l.v2 == "" {
		t.Skip("there is no cgroup of version 2")
	}
	sleeps := []string{"sleep", "1000"}
	own := l.run(l.setup(l.host, false, 0), sleeps...)
	for name, start := range map[string]func() (*Starting, error){
		"container": func() (*Starting, error) {
			s := l.setup(l.host, false, 0)
			s.Cgroup = filepath.Join(l.v2, "frozen")
			return l.real.Begin(s, l.process(sleeps...), Stdio{}, nil)
		},
		"exec": func() (*Starting, error) {
			target := l.target(own.pidfd, false)
			target.Inner = "frozen"
			return l.real.Join(target, l.process(sleeps...), Stdio{}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(l.v2, "frozen")
			l.must(os.Mkdir(dir, 0o755))
			defer func() { l.must(os.Remove(dir)) }()
			freezer := filepath.Join(dir, "cgroup.freeze")
			l.must(os.WriteFile(freezer, []byte("1"), 0))
			const wait = 30 * time.Second
			thaw := exec.Command("sh", "-c", "sleep 30; echo 0 >"+freezer) // in case this process itself waits
			l.must(thaw.Start())
			defer func() { _ = thaw.Process.Kill(); _ = thaw.Wait() }()
			began := time.Now()
			f, err := start()
			l.must(err)
			defer f.Close()
			if took := time.Since(began); took > wait/2 {
				t.Errorf("it took %v", took)
			}
			answered := make(chan error, 1)
			go func() {
				_, err := f.Start()
				if err == nil {
					err = f.Ready()
				}
				answered <- err
			}()
			time.Sleep(200 * time.Millisecond)
			f.Interrupt()
			if err := <-answered; err != ErrInterrupted {
				t.Errorf("the start is answered with %v", err)
			}
			f.Kill()
			if pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(pids) > 0 {
				t.Errorf("processes %q are left, %v", pids, err)
			}
		})
	}
}

// TestAnExecThatDoesNotForkIsSetUpOnceItHasStarted, on both versions of cgroups: on version 2 it is the child of the
// process that was started.
func TestAnExecThatDoesNotForkIsSetUpOnceItHasStarted(t *testing.T) {
	l := newLab(t)
	own := l.run(l.setup(l.host, false, 0), "sleep", "1000")
	for name, clone := range map[string]bool{"version 1": false, "version 2": true} {
		t.Run(name, func(t *testing.T) {
			target := l.target(own.pidfd, false)
			target.Namespaces &^= unix.CLONE_NEWPID
			if clone && l.v2 == "" {
				t.Skip("there is no cgroup of version 2")
			}
			if !clone {
				target.Cgroup, target.Clone = "", false
			}
			f, err := l.real.Join(target, l.process("sleep", "0"), Stdio{}, nil)
			l.must(err)
			defer f.Close()
			pid, err := f.Start()
			l.must(err)
			inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			l.must(err)
			if host, err := os.Readlink("/proc/self/ns/mnt"); err != nil || inside == host {
				t.Errorf("it is still in the mount namespace of the host: %v", err)
			}
			if again, err := f.Start(); err != nil || again != pid {
				t.Errorf("asked again, it is %d and not %d: %v", again, pid, err)
			}
			l.must(f.Run())
			reap(pid)
		})
	}
}
