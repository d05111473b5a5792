package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/jail/wire"
	"berth/internal/namespace"
	"berth/internal/throwaway"
)

// maxDirs is how many directories a child can have: an image has at most some hundred layers.
const maxDirs = 512

// spawner is a thread that children are forked from. They have its namespaces, its bounding set and its no_new_privs;
// it has nothing else to do, and ends with berthd, at which the kernel kills the children.
type spawner struct {
	calls chan func()
	// spoilt is why its namespace has more in it than it should, so that no child is to be started from it.
	// It belongs to the thread.
	spoilt error
}

// newSpawner makes a thread that starts a program, in a mount namespace whose root shows nothing but the program. dir
// is an existing directory.
func newSpawner(program *os.File, dir string) (*spawner, error) {
	// The program's mount is taken from the namespace that it is in.
	tree, err := openTree(program)
	if err != nil {
		return nil, fmt.Errorf("take %s into a jail: %w", program.Name(), err)
	}
	defer tree.Close()
	s := &spawner{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		_ = throwaway.Thread(func() error {
			err := enter(tree, dir)
			ready <- err
			if err != nil {
				return err
			}
			for call := range s.calls {
				call()
			}
			return nil
		})
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

// close ends the thread. No child may be alive: they end with it.
func (s *spawner) close() { close(s.calls) }

// do runs something in the thread.
func (s *spawner) do(f func() error) error {
	done := make(chan error)
	s.calls <- func() { done <- f() }
	return <-done
}

func openTree(f *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

const (
	programFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	dirFlags     = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

// enter makes this thread one that children can be forked from.
func enter(program *os.File, dir string) error {
	const at = "/" + wire.Program
	err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS |
		unix.CLONE_NEWCGROUP)
	if err != nil {
		return fmt.Errorf("make namespaces for children: %w", os.NewSyscallError("unshare", err))
	}
	err = namespace.Empty(dir, "size=1m,nr_inodes=1k,mode=755", func() error {
		f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o755)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := os.Mkdir(keepDir, 0o700); err != nil {
			return err
		}
		for i := range maxDirs {
			if err := os.Mkdir(wire.Dir(i), 0o700); err != nil {
				return err
			}
		}
		return attach(program, at, programFlags)
	})
	if err != nil {
		return err
	}
	// Whatever a child executes, which no filter allows, would get none of root's capabilities.
	const securebits = 1<<0 | 1<<1 // SECBIT_NOROOT and its lock
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, securebits, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_SECUREBITS)", err)
	}
	for c := uintptr(0); ; c++ {
		if allowed(c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		}
		if err != nil {
			return os.NewSyscallError("prctl(PR_CAPBSET_DROP)", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	return nil
}

func allowed(capability uintptr) bool {
	for _, c := range wire.Capabilities {
		if c == capability {
			return true
		}
	}
	return false
}

// attach puts a mount that is nowhere into this thread's namespace.
func attach(tree *os.File, at string, flags uintptr) error {
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	// It may still be a peer of the host's.
	err := unix.Mount("", at, "", unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("mount %s in a jail: %w", at, err), unix.Unmount(at, unix.MNT_DETACH))
	}
	return nil
}

// keepDir is where a second mount of a directory is, for what is kept of it. Only one child's at a time is there, and
// only of one directory.
const keepDir = "/keep"

// keep makes a name in a directory one that stays: what is a mount point, anywhere in a process's namespace,
// it can neither move nor remove. A file is covered by a mount of itself that is read-only. A directory
// has to be reached by the directory's own mount, and is a mount point in another one.
func (s *spawner) keep(k kept, dir string) error {
	const flags = dirFlags | unix.MS_RDONLY
	if k.home == nil {
		return attach(k.mount, dir+"/"+k.name, flags)
	}
	if err := attach(k.home, keepDir, flags); err != nil {
		return err
	}
	if err := attach(k.mount, keepDir+"/"+k.name, flags); err != nil {
		s.detach(keepDir)
		return err
	}
	return nil
}

// detach removes a mount and what is mounted in it.
func (s *spawner) detach(at string) {
	if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
		s.spoilt = fmt.Errorf("a directory of a child could not be unmounted, so no other child is started: %w", err)
	}
}

// spawn starts a child. Its namespace is a copy of the thread's, taken while the directories are mounted there.
func (s *spawner) spawn(dirs []*tree, arguments []string, files []*os.File, capabilities []uintptr,
	uid uint32) (*os.Process, error) {
	var process *os.Process
	err := s.do(func() (err error) {
		if s.spoilt != nil {
			return s.spoilt
		}
		defer func() {
			if s.spoilt != nil && process != nil {
				err = errors.Join(s.spoilt, process.Kill())
				_, _ = process.Wait()
			}
		}()
		for i, d := range dirs {
			flags := uintptr(dirFlags)
			if d.readOnly {
				flags |= unix.MS_RDONLY
			}
			if err := attach(d.mount, wire.Dir(i), flags); err != nil {
				return err
			}
			defer s.detach(wire.Dir(i)) // with what is mounted in it
			for _, k := range d.keep {
				if err := s.keep(k, wire.Dir(i)); err != nil {
					return fmt.Errorf("keep %s: %w", k.name, err)
				}
				if k.home != nil {
					defer s.detach(keepDir)
				}
			}
		}
		process, err = os.StartProcess("/"+wire.Program, arguments, &os.ProcAttr{
			// One processor: a child waits for the one before it or the one behind it more often than not.
			Env: []string{"GOMAXPROCS=1", "GOTRACEBACK=single"}, Files: files,
			Sys: &syscall.SysProcAttr{
				Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Credential: &syscall.Credential{Uid: uid, Gid: uid},
				AmbientCaps: capabilities, Pdeathsig: syscall.SIGKILL,
			},
		})
		return err
	})
	return process, err
}

// first has the kernel end a child before other processes when memory is short: a pull can be repeated, a pod cannot.
func first(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("1000"), 0)
}
