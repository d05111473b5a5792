package stage

// #cgo CFLAGS: -Wall -O2
// #include "stage.h"
import "C"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/filter"
)

// Process is the process that a stage becomes when it executes the program.
type Process struct {
	Args, Env       []string
	Cwd             string
	UID, GID        uint32
	Groups          []uint32
	NoNewPrivileges bool
	Capabilities    *Capabilities  // nil: all are kept
	AppArmor, Label string         // an AppArmor profile, or an SELinux label
	Filter          *filter.Filter // nil: none
	// Terminal asks for one; the size is the kernel's default where it is zero.
	Terminal      bool
	Rows, Columns uint16

	limits []Limit // as in the plan
}

// Capabilities are sets of bits, by the kernel's numbers.
type Capabilities struct{ Bounding, Effective, Inheritable, Permitted, Ambient uint64 }

// lastCapability is the kernel's last; its bounding set has all up to it.
var lastCapability = sync.OnceValue(func() uint32 {
	for c := uint32(0); ; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil {
			return c - 1
		}
	}
})

// environment drops all but the last of variables with one name. It says whether HOME has a value, and gives PATH.
func environment(env []string) (out []string, home bool, path string, err error) {
	seen := make(map[string]bool, len(env))
	for _, kv := range slices.Backward(env) {
		key, value, ok := strings.Cut(kv, "=")
		if !ok || key == "" {
			return nil, false, "", fmt.Errorf("environment variable %q has no name or no value: %w",
				kv, errdefs.ErrInvalidArgument)
		}
		if strings.IndexByte(kv, 0) >= 0 {
			return nil, false, "", fmt.Errorf("environment variable %q holds a NUL byte: %w", key, errdefs.ErrInvalidArgument)
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		switch key {
		case "PATH":
			path = value
		case "HOME":
			if value == "" {
				continue
			}
			home = true
		}
		out = append(out, kv)
	}
	slices.Reverse(out)
	return out, home, path, nil
}

// encoder lays a plan out in memory.
type encoder struct {
	plan C.struct_stage_plan
	data bytes.Buffer // what follows the plan itself

	limited []Limit
}

const planSize = int(unsafe.Sizeof(C.struct_stage_plan{}))

func (e *encoder) align() {
	for e.data.Len()%8 != 0 {
		e.data.WriteByte(0)
	}
}

func (e *encoder) offset() C.uint32_t { return C.uint32_t(planSize + e.data.Len()) }

// text adds a string. The empty one has offset 0.
func (e *encoder) text(s string) C.uint32_t {
	if s == "" {
		return 0
	}
	at := e.offset()
	e.data.WriteString(s)
	e.data.WriteByte(0)
	return at
}

func (e *encoder) list(count int, values any) C.struct_stage_list {
	e.align()
	l := C.struct_stage_list{count: C.uint32_t(count), offset: e.offset()}
	_ = binary.Write(&e.data, binary.NativeEndian, values) // to memory
	return l
}

// texts adds strings and, in places of the size of a pointer, their offsets, with room for more.
func (e *encoder) texts(list []string, room int) C.struct_stage_list {
	offsets := make([]uint64, len(list)+room)
	for i, s := range list {
		at := e.offset()
		e.data.WriteString(s)
		e.data.WriteByte(0)
		offsets[i] = uint64(at)
	}
	l := e.list(len(offsets), offsets)
	l.count = C.uint32_t(len(list))
	return l
}

// file writes the plan into a file in memory. more adds what the process is to do before it becomes what p says.
// With forks it forks at the end, and its child runs the program.
func (p *Process) file(more func(*encoder) error, forks bool) (*os.File, error) {
	if len(p.Args) == 0 || p.Args[0] == "" {
		return nil, fmt.Errorf("process without a command: %w", errdefs.ErrInvalidArgument)
	}
	for _, s := range append(slices.Clone(p.Args), p.Cwd, p.AppArmor, p.Label) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("argument %q holds a NUL byte: %w", s, errdefs.ErrInvalidArgument)
		}
	}
	env, home, path, err := environment(p.Env)
	if err != nil {
		return nil, err
	}
	e := &encoder{}
	pl := &e.plan
	pl.magic = C.STAGE_MAGIC
	pl.uid, pl.gid = C.uint32_t(p.UID), C.uint32_t(p.GID)
	pl.last_capability = C.uint32_t(lastCapability())
	if p.NoNewPrivileges {
		pl.flags |= C.STAGE_NO_NEW_PRIVS
	}
	if c := p.Capabilities; c != nil {
		pl.flags |= C.STAGE_CAPABILITIES
		pl.bounding, pl.effective, pl.inheritable = C.uint64_t(c.Bounding), C.uint64_t(c.Effective), C.uint64_t(c.Inheritable)
		pl.permitted, pl.ambient = C.uint64_t(c.Permitted), C.uint64_t(c.Ambient)
	}
	if p.Terminal {
		pl.flags |= C.STAGE_TERMINAL
		pl.rows, pl.columns = C.uint32_t(p.Rows), C.uint32_t(p.Columns)
	}
	room := 1 // for the pointer that ends the list
	if !home {
		pl.flags |= C.STAGE_HOME
		room++
	}
	pl.args = e.texts(p.Args, 1)
	pl.env = e.texts(env, room)
	pl.groups = e.list(len(p.Groups), p.Groups)
	pl.cwd, pl.path = e.text(p.Cwd), e.text(path)
	switch {
	case p.AppArmor != "" && p.Label != "":
		return nil, fmt.Errorf("AppArmor profile %q and SELinux label %q at once: %w", p.AppArmor, p.Label,
			errdefs.ErrInvalidArgument)
	case p.Label != "":
		pl.flags |= C.STAGE_SELINUX
		pl.confinement = e.text(p.Label)
	case p.AppArmor != "":
		pl.confinement = e.text("exec " + p.AppArmor)
	}
	if f := p.Filter; f != nil {
		pl.filter = e.list(len(f.Program)/filter.InstructionSize, f.Program)
		pl.seccomp_flags = C.uint32_t(f.Flags)
	}
	if forks {
		pl.flags |= C.STAGE_FORK
		switch {
		case p.Filter == nil:
		case p.Filter.Allows(afterFork):
			pl.flags |= C.STAGE_FILTER_EARLY
		default:
			wider, err := p.Filter.With(wideFork)
			if err != nil {
				return nil, err // not without it: the container would see a process that has no filter
			}
			pl.wider = e.list(len(wider)/filter.InstructionSize, wider)
		}
	}
	if more != nil {
		if err := more(e); err != nil {
			return nil, err
		}
	}
	p.limits = e.limited
	e.data.WriteByte(0) // what the stage relies on: the last byte ends every string
	e.align()
	pl.size = e.offset()
	return memory(append(unsafe.Slice((*byte)(unsafe.Pointer(pl)), planSize), e.data.Bytes()...))
}

func (t *Target) encode(e *encoder) error {
	pl := &e.plan
	pl.flags |= C.STAGE_JOIN
	pl.namespaces = C.uint32_t(t.Namespaces)
	if t.OwnCgroupNamespace {
		pl.flags |= C.STAGE_CGROUP_NAMESPACE
		pl.namespaces &^= unix.CLONE_NEWCGROUP
	}
	if t.Umask != nil {
		pl.flags |= C.STAGE_UMASK
		pl.umask = C.uint32_t(*t.Umask)
	}
	if t.OOMScore != nil {
		pl.flags |= C.STAGE_OOM_SCORE
		pl.oom_score = C.int32_t(*t.OOMScore)
	}
	if t.Keyring != "" {
		pl.flags |= C.STAGE_KEYRING
		pl.keyring, pl.keyring_uid = e.text(t.Keyring), C.uint32_t(t.KeyringUID)
	}
	pl.limits = e.limits(t.Limits)
	pl.cgroups.count = C.uint32_t(len(t.Cgroups))
	if t.Clone {
		pl.flags |= C.STAGE_CLONE
	}
	return nil
}

// forks says whether the process enters a PID namespace that has other processes.
func (t *Target) forks() bool { return t.Namespaces&unix.CLONE_NEWPID != 0 }

// afterFork are the calls that a stage makes from its fork on (fork_into_pid_namespace in stage.c), until its program
// runs. Where a filter allows all of them, it is loaded before the fork.
var afterFork = []filter.Call{
	{Number: unix.SYS_CLONE, Args: [6]uint64{unix.CLONE_PARENT | uint64(unix.SIGCHLD)}},
	{Number: unix.SYS_SETSID},
	{Number: unix.SYS_IOCTL, Args: [6]uint64{0, unix.TIOCSCTTY}},
	{Number: unix.SYS_PRLIMIT64, Args: [6]uint64{0, unix.RLIMIT_NPROC}},
	{Number: unix.SYS_READ, Args: [6]uint64{C.STAGE_FD_KEEPER, 0, 1}},
	{Number: unix.SYS_WRITE, Args: [6]uint64{C.STAGE_FD_KEEPER, 0, C.sizeof_struct_stage_status}},
	{Number: unix.SYS_WRITE, Args: [6]uint64{C.STAGE_FD_MARK, 0, 1}},
	{Number: unix.SYS_CAPSET},
	{Number: unix.SYS_EXECVE},
	{Number: unix.SYS_EXIT_GROUP},
}

// wideFork are the calls that a stage makes after its fork if its filter does not allow all of afterFork: the filter is
// loaded then, too.
var wideFork = append(slices.Clone(afterFork), filter.Call{Number: unix.SYS_SECCOMP,
	Args: [6]uint64{unix.SECCOMP_SET_MODE_FILTER}})

// memory is a file with this content that nobody can change any more.
func memory(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("berth-stage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "plan")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	return f, nil
}
