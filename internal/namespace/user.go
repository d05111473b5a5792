package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/coredump"
	"berth/internal/model"
	"berth/internal/throwaway"
)

// UserMappings are the IDs of a user namespace. The node's root must be able to give them.
type UserMappings struct {
	UIDs, GIDs []model.IDMapping
}

// inUserNamespace starts a process in a new user namespace, and in further new ones that the user namespace owns, and
// calls f with its ID. Only a process without threads can enter a new user namespace, so it is a process of its own:
// it is traced, stops before the first instruction of its program, and is killed there when f returns.
func inUserNamespace(u UserMappings, flags int, f func(pid int) error) error {
	// The tracer is this thread, and the process dies with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 uintptr(syscall.CLONE_NEWUSER | flags),
		UidMappings:                sysMappings(u.UIDs),
		GidMappings:                sysMappings(u.GIDs),
		GidMappingsEnableSetgroups: true,
		Ptrace:                     true,
		Pdeathsig:                  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		kinds := []Kind{User}
		for _, k := range []Kind{Network, IPC, UTS} {
			if flags&cloneFlags[k] != 0 {
				kinds = append(kinds, k)
			}
		}
		return fmt.Errorf("make a user namespace: %w", explain(err, kinds...))
	}
	err := f(cmd.Process.Pid)
	err = errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait() // says only that it was killed
	return err
}

// NewUser makes a user namespace that lives as long as the file.
func NewUser(u UserMappings) (ns *os.File, err error) {
	err = inUserNamespace(u, 0, func(pid int) error {
		ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	if err != nil && ns != nil {
		ns.Close()
		ns = nil
	}
	return ns, err
}

func sysMappings(mappings []model.IDMapping) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(mappings))
	for i, m := range mappings {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Length)}
	}
	return out
}

// createOwned makes namespaces that a new user namespace owns, and pins them and it.
func (s Set) createOwned(flags int, o Options) error {
	err := inUserNamespace(*o.User, flags, func(pid int) error {
		for _, k := range append([]Kind{User}, o.Kinds...) {
			if err := s.PinProcess(k, pid); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(o.Kinds) == 0 {
		return err
	}
	return throwaway.Thread(func() error {
		for _, k := range o.Kinds {
			if err := s.join(k); err != nil {
				return err
			}
		}
		if flags&unix.CLONE_NEWIPC != 0 {
			if err := giveQueues(o.User); err != nil {
				return fmt.Errorf("give the message queues to the root of the user namespace: %w", err)
			}
		}
		return configure(flags, o)
	})
}

// asRoot runs f with the effective user ID of the user namespace's root. It is the only one that newer kernels (since
// 50ec499b9a43) let write the sysctls of an IPC namespace; those of other namespaces are for the node's root. The
// calling thread is a throwaway one. Its effective capabilities go with the ID and come back with it.
func (u *UserMappings) asRoot(f func() error) error {
	uid, ok := model.HostID(u.UIDs, 0)
	if !ok {
		return fmt.Errorf("the user namespace has no root: %w", os.ErrPermission)
	}
	if err := setEffectiveUser(uid); err != nil {
		return err
	}
	return errors.Join(f(), setEffectiveUser(0), coredump.Forbid()) // core files: the kernel allows them with another ID
}

// setEffectiveUser is about the calling thread alone, where syscall.Setresuid is about the whole process.
func setEffectiveUser(uid uint32) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}

// giveQueues gives the root of the calling thread's mqueue file system to the user namespace's root. It is the node's,
// whose process made it.
func giveQueues(u *UserMappings) error {
	uid, user := model.HostID(u.UIDs, 0)
	gid, group := model.HostID(u.GIDs, 0)
	if !user || !group {
		return nil
	}
	fs, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(mount)
	return os.NewSyscallError("fchownat", unix.Fchownat(mount, "", int(uid), int(gid), unix.AT_EMPTY_PATH))
}

// join puts the calling thread into a pinned namespace.
func (s Set) join(k Kind) error {
	f, err := os.Open(s.Path(k))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), cloneFlags[k]); err != nil {
		return fmt.Errorf("join the %s namespace: %w", k, err)
	}
	return nil
}
