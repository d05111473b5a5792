package stage

// #include "stage.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/null"
	"berth/internal/keeper/program"
	"berth/internal/keeper/timerslack"
)

// Program is what stages are executed from, sealed: the small program that the keeper has inside, or else a view
// of the keeper's own.
type Program struct {
	exe    *os.File
	forker *forker
	many   int      // see manyDescriptors
	mounts *os.File // see PrepareSetups
}

// Supported is an error where the kernel lacks what a stage needs: setns(2) by a pidfd (Linux 5.8), close_range(2)
// (5.9) and, on cgroup v2, clone3(2) with CLONE_INTO_CGROUP, which a seccomp filter around the keeper may refuse.
func Supported() error {
	if err := unix.CloseRange(math.MaxUint32, math.MaxUint32, 0); err == unix.ENOSYS {
		return fmt.Errorf("a stage needs Linux 5.9: %w", os.NewSyscallError("close_range", err))
	}
	if !cgroups.IsCgroup2UnifiedMode() && !cgroups.IsCgroup2HybridMode() {
		return nil
	}
	// This is asked here, once, and not of the errors of later calls: a container can bring about most of these, and
	// must not decide by them which engine starts its execs. The descriptor is never open, so no process is created.
	attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: math.MaxInt32}}
	if _, err := syscall.ForkExec(C.STAGE_PATH, []string{C.STAGE_NAME}, attr); refused(err) {
		return fmt.Errorf("a stage needs processes that are created in a cgroup of version 2: %w",
			os.NewSyscallError("clone3", err))
	}
	return nil
}

// refused says whether the kernel, or a seccomp filter, does not allow clone3(2) with CLONE_INTO_CGROUP. Other errors
// are that of the descriptor, or say that the machine is short of something at this moment.
func refused(err error) bool {
	switch err {
	case unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.E2BIG:
		return true
	}
	return false
}

// Seal makes the view. dir is for what it takes where the kernel knows no better way.
func Seal(dir string) (*Program, error) {
	var exe *os.File
	var err error
	if file, ok := program.File(); ok {
		exe, err = exeseal.CloneBinary(strings.NewReader(file), int64(len(file)), C.STAGE_NAME, dir)
	} else {
		exe, err = exeseal.CloneSelfExe(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("seal the stage's program: %w", err)
	}
	return newProgram(exe)
}

func newProgram(exe *os.File) (*Program, error) {
	f, err := newForker(int(exe.Fd()))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return &Program{exe: exe, many: math.MaxInt}, nil // it costs time only
	}
	if err != nil {
		exe.Close()
		return nil, fmt.Errorf("make a thread that starts stages: %w", err)
	}
	return &Program{exe: exe, forker: f, many: manyDescriptors}, nil
}

// Target is a running container that a process joins.
type Target struct {
	Pidfd      int    // of its init process
	Namespaces uint32 // CLONE_NEW* of those to be joined
	// Cgroups are directories of version 1 hierarchies; Cgroup is one of version 2, empty: none.
	Cgroups []string
	Cgroup  string
	// Inner is a path from Cgroup to the cgroup below it that is joined in its place; empty: Cgroup itself is joined.
	Inner string
	// Clone: the stage is started in the keeper's cgroup, and creates the process in Cgroup itself. It is for cgroups in
	// which a process may wait before it has executed its program: because the container has used up its quota of
	// processor time, or has frozen the cgroup. A keeper that had created this process would do nothing else meanwhile.
	Clone bool
	// OwnCgroupNamespace: the process makes a cgroup namespace, and does not join the container's. It shows the same if
	// that was made in the cgroup that the process is in. Whatever the process starts is in it too.
	OwnCgroupNamespace bool

	Umask    *uint32
	OOMScore *int
	Keyring  string // name of the session keyring; empty: the keeper's is kept
	// KeyringUID is the user to whom it belongs; 0: the container's root.
	KeyringUID uint32
	Limits     []Limit
}

// ErrSubtreeControl is the error of Join if the kernel allows no processes in Target.Cgroup, because cgroups below it
// have controllers. Nothing has been started.
var ErrSubtreeControl = errors.New("it takes no processes, because cgroups in it have controllers " +
	"(cgroup.subtree_control)")

// Stdio are standard streams; nil is a null device of the process's own.
type Stdio [3]*os.File

// spawn holds the arguments and descriptors of a stage that the keeper starts.
type spawn struct {
	plan, keeper *os.File
	namespaces   int // see STAGE_FD_NAMESPACES
	stdio        Stdio
	console      *os.File // nil: none
	mark         *os.File // nil: none
	node         *os.File // see Setup.Node
	cgroups      []string // directories of version 1 hierarchies
	cgroup       string   // of version 2, empty: none
	inner        string   // see Target.Inner
	clone        bool     // see Target.Clone
	flags        uintptr  // CLONE_NEW*
}

func (p *Program) spawn(s *spawn) (pid int, err error) {
	files := []*os.File{0: s.stdio[0], 1: s.stdio[1], 2: s.stdio[2], C.STAGE_FD_EXE: p.exe, C.STAGE_FD_PLAN: s.plan,
		C.STAGE_FD_KEEPER: s.keeper, C.STAGE_FD_CONSOLE: s.console, C.STAGE_FD_NAMESPACES: nil,
		C.STAGE_FD_MARK: s.mark, C.STAGE_FD_NODE: s.node}
	for _, i := range []int{C.STAGE_FD_CONSOLE, C.STAGE_FD_MARK, C.STAGE_FD_NODE} {
		if files[i] == nil {
			files[i] = s.plan // the stage closes it
		}
	}
	var nothing *os.File
	for i := range s.stdio {
		if files[i] != nil {
			continue
		}
		if nothing == nil {
			if nothing, err = null.Open(); err != nil {
				return 0, err
			}
			defer nothing.Close()
		}
		files[i] = nothing
	}
	fds := make([]int, len(files))
	for i, f := range files {
		if fds[i] = s.namespaces; f != nil {
			fds[i] = int(f.Fd())
		}
	}
	// The lowest free number was the plan's, so this is about how many descriptors the keeper has.
	if fds[C.STAGE_FD_PLAN] < p.many {
		err = timerslack.AsUsual(func() (err error) {
			pid, err = p.fork(s, fds)
			return err
		})
	} else {
		p.forker.do(func() {
			var closeAll func()
			closeAll, err = p.forker.take(fds, int(p.exe.Fd()))
			defer closeAll()
			if err == nil {
				pid, err = p.fork(s, fds)
			}
		})
	}
	runtime.KeepAlive(files)
	if err != nil {
		return 0, err
	}
	return pid, nil
}

// manyDescriptors are so many that the forker is faster, which takes 65 µs for two changes of the thread and for the
// duplicates. To copy and to close 4,000 descriptors takes 630 µs.
const manyDescriptors = 500

// fork starts a stage with these descriptors of the calling thread.
func (p *Program) fork(s *spawn, fds []int) (pid int, err error) {
	attr := &syscall.ProcAttr{Env: []string{}, Sys: &syscall.SysProcAttr{}}
	if !s.clone {
		attr.Sys.Cloneflags = s.flags
	}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	for _, dir := range s.cgroups {
		fd, err := unix.Open(filepath.Join(dir, "tasks"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, cgroupError(dir, err)
		}
		defer unix.Close(fd)
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if s.cgroup != "" {
		fd, err := s.openCgroup()
		if err != nil {
			return 0, cgroupError(filepath.Join(s.cgroup, s.inner), err)
		}
		defer unix.Close(fd)
		if s.clone {
			attr.Files = append(attr.Files, uintptr(fd))
		} else {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
		}
	}
	pid, err = syscall.ForkExec(C.STAGE_PATH, []string{C.STAGE_NAME}, attr)
	switch {
	case err == nil:
		return pid, nil
	case attr.Sys.UseCgroupFD:
		return 0, cgroupError(s.cgroup, err)
	}
	return 0, fmt.Errorf("execute the stage: %w", noRoom(err))
}

// openCgroup opens the directory of the cgroup of version 2. The container has made the cgroups on the path inner, and
// may remove them meanwhile.
func (s *spawn) openCgroup() (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	dir, err := unix.Open(s.cgroup, flags, 0)
	if err != nil || s.inner == "" {
		return dir, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, s.inner, &unix.OpenHow{Flags: flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV})
}

// cgroupError is the error of a process that could not be started in a cgroup.
func cgroupError(dir string, err error) error {
	return fmt.Errorf("start a process in cgroup %s: %w", dir, ofKind(err))
}

// ofKind gives the kernel's errors about a process that joins a cgroup, or is created in one, their kinds. A container
// can bring about most of them.
func ofKind(err error) error {
	switch err {
	case unix.EBUSY:
		return fmt.Errorf("%w: %w: %w", ErrSubtreeControl, err, errdefs.ErrFailedPrecondition)
	case unix.EOPNOTSUPP:
		return fmt.Errorf("it takes no processes, because it or a cgroup above it is threaded (cgroup.type): %w: %w", err,
			errdefs.ErrFailedPrecondition)
	case unix.ENOENT, unix.ENODEV:
		return fmt.Errorf("it is gone: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return noRoom(err)
}

// noRoom gives an error about a new process its kind if it says that a limit is reached.
func noRoom(err error) error {
	switch err {
	case unix.EAGAIN:
		return fmt.Errorf("a limit of processes is reached: %w: %w", err, errdefs.ErrResourceExhausted)
	case unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

// steps are what failed, in words. The ones that say why a program cannot be executed are as os/exec has them.
var steps = map[int32]string{
	C.STEP_PLAN: "read the plan", C.STEP_CGROUP: "join the container's cgroup", C.STEP_OOM_SCORE: "set oom_score_adj",
	C.STEP_RLIMIT: "set resource limits", C.STEP_NAMESPACE: "join the container's namespaces", C.STEP_FORK: "fork",
	C.STEP_ROOT: "become the container's root", C.STEP_LABEL: "label the session keyring",
	C.STEP_KEYRING: "join the session keyring", C.STEP_TERMINAL: "make a terminal",
	C.STEP_NO_NEW_PRIVS: "set no_new_privs",
	C.STEP_DESCRIPTORS:  "close descriptors",
	C.STEP_CWD_OUTSIDE:  "the working directory is outside of the container's root: possible breakout",
	C.STEP_BOUNDING:     "drop capabilities of the bounding set", C.STEP_STDIO: "give standard streams to the user",
	C.STEP_GROUPS: "set additional groups", C.STEP_GID: "set the group", C.STEP_UID: "set the user",
	C.STEP_UNSHARE: "make namespaces", C.STEP_ROOTFS: "enter the root file system",
	C.STEP_TRANSIT: "bring mounts into the user namespace", C.STEP_PROC: "open a procfs of the pod's processes",
	C.STEP_DUMPABLE: "keep others from reading this process", C.STEP_AWAIT: "wait for the keeper",
	C.STEP_MARK: "say that the program is about to begin",
	C.STEP_NULL: "the container's /dev/null is something else", C.STEP_CAPABILITIES: "set capabilities",
	C.STEP_SECCOMP: "load the seccomp filter",
}

func (p *Process) failure(step, operation int32, errno unix.Errno) error {
	switch name := p.Args[0]; step {
	case C.STEP_CWD:
		return fmt.Errorf("enter working directory %q: %w", p.Cwd, errno)
	case C.STEP_LOOKUP:
		return fmt.Errorf("exec: %q: executable file not found in $PATH", name)
	case C.STEP_LOOKUP_RELATIVE:
		return fmt.Errorf("exec: %q: executable file not found but relative to the working directory", name)
	case C.STEP_STAT:
		return fmt.Errorf("exec: %q: %w", name, errno)
	case C.STEP_EXEC:
		return fmt.Errorf("exec %s: %w", strings.TrimSpace(name), errno)
	case C.STEP_CONFINE, C.STEP_CONFINE_OPEN:
		if p.Label != "" {
			return fmt.Errorf("set the SELinux label %q: %w", p.Label, errno)
		}
		return fmt.Errorf("set the AppArmor profile %q: %w", p.AppArmor, errno)
	case C.STEP_KEYRING:
		if errno == unix.EDQUOT {
			return fmt.Errorf("%s: the quota of keys of its user is used up (/proc/key-users; for root, "+
				"kernel.keys.root_maxkeys and root_maxbytes): %w: %w", steps[step], errno, errdefs.ErrResourceExhausted)
		}
	case C.STEP_CGROUP:
		return fmt.Errorf("%s: %w", steps[step], ofKind(errno))
	case C.STEP_FORK, C.STEP_PROC:
		if errno == unix.EAGAIN { // ENOMEM also says that the PID namespace has ended
			return fmt.Errorf("%s: %w", steps[step], noRoom(errno))
		}
	case C.STEP_RLIMIT:
		if operation >= 0 && int(operation) < len(p.limits) {
			return fmt.Errorf("set the resource limit %v: %w", p.limits[operation], errno)
		}
	}
	return fmt.Errorf("%s: %w", steps[step], errno)
}

// Last is a stage that libcontainer's process becomes in place of the program.
type Last struct {
	// Args are what to execute, with Files as its further descriptors.
	Args  []string
	Files []*os.File

	plan, status, theirs *os.File
	proc                 *Process
}

// Finish prepares the last stage of a container's init process.
func (p *Program) Finish(proc *Process) (*Last, error) {
	plan, err := proc.file(nil, false)
	if err != nil {
		return nil, err
	}
	status, theirs, err := os.Pipe()
	if err != nil {
		plan.Close()
		return nil, err
	}
	return &Last{
		Args: []string{C.STAGE_PATH, C.STAGE_NAME}, Files: []*os.File{p.exe, plan, theirs},
		plan: plan, status: status, theirs: theirs, proc: proc,
	}, nil
}

// Wait returns when the program runs, or with the error that keeps it from running. pid is that of the stage. The end
// of the pipe says so at once, unless a container has taken a copy of the stage's descriptor (pidfd_getfd(2)): then it
// is found out that the process itself has none any more.
func (l *Last) Wait(pid int) error {
	l.theirs.Close()
	info, err := l.status.Stat()
	if err != nil {
		return fmt.Errorf("receive a stage's report: %w", err)
	}
	pipe := fmt.Sprintf("pipe:[%d]", info.Sys().(*syscall.Stat_t).Ino)
	for last := false; ; {
		if err := l.status.SetReadDeadline(time.Now().Add(lookAgain)); err != nil {
			return fmt.Errorf("receive a stage's report: %w", err)
		}
		var r report
		switch err := binary.Read(l.status, binary.NativeEndian, &r); {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded) && last:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			last = !has(pid, pipe) // with one more look for what it said before
		case err != nil:
			return fmt.Errorf("receive a stage's report: %w", err)
		default:
			return l.proc.failure(r.Step, r.Operation, unix.Errno(r.Value))
		}
	}
}

// has says whether a process has a pipe open. It asks no file of the process for more than its name: it may be on a
// file system of the container's that does not answer.
func has(pid int, pipe string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && name == pipe
	})
}

// Close closes the descriptors that the keeper holds of the stage.
func (l *Last) Close() {
	for _, f := range []*os.File{l.plan, l.status, l.theirs} {
		f.Close()
	}
}
