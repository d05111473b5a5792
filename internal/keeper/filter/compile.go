package filter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"
)

// Argument makes the keeper's binary the compiler.
const Argument = "compile-seccomp"

// InstructionSize is that of one instruction of a program (struct sock_filter).
const InstructionSize = 8

// maxProgram is the kernel's limit (BPF_MAXINSNS).
const maxProgram = 4096 * InstructionSize

// Filter is a compiled profile.
type Filter struct {
	Flags   uint32 // of seccomp(2)
	Program []byte

	mu      sync.Mutex
	asked   []Call // what Allows was last asked about
	allowed bool
}

// ErrListener is the error for a profile that has an agent told of calls: the process that loads it must hand the agent
// a descriptor, which the stage does not do.
var ErrListener = errors.New("the profile has a listener")

// errProfile is the error of the compiler about a profile: it will be the same each time. All others, such as that no
// process can be created, are about the machine at that moment.
var errProfile = errors.New("the profile cannot be compiled")

// exitProfile is the compiler's exit code for errProfile. A Go program whose runtime fails ends with 2.
const exitProfile = 3

// compileWait bounds a compilation; the longest profiles take some hundred milliseconds.
const compileWait = 30 * time.Second

// Compile runs the compiler.
func Compile(ctx context.Context, profile *configs.Seccomp) (*Filter, error) {
	for _, call := range profile.Syscalls {
		if call != nil && call.Action == configs.Notify {
			return nil, ErrListener
		}
	}
	if profile.DefaultAction == configs.Notify || profile.ListenerPath != "" {
		return nil, ErrListener
	}
	in, err := json.Marshal(profile)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, compileWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Argument)
	cmd.Stdin = bytes.NewReader(in)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == exitProfile {
			err = errProfile
		}
		return nil, fmt.Errorf("compile seccomp profile: %w: %s", err, strings.TrimSpace(errOut.String()))
	}
	f, err := Parse(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errProfile, err)
	}
	return f, nil
}

// Bytes is a filter as it is kept in a file.
func (f *Filter) Bytes() []byte {
	return append(binary.NativeEndian.AppendUint32(nil, f.Flags), f.Program...)
}

// Parse reads what Bytes gave.
func Parse(b []byte) (*Filter, error) {
	n := len(b) - 4
	if n < InstructionSize || n%InstructionSize != 0 || n > maxProgram {
		return nil, fmt.Errorf("compiled seccomp profile has %d bytes", len(b))
	}
	return &Filter{Flags: binary.NativeEndian.Uint32(b), Program: b[4:]}, nil
}

// Main is the compiler: a profile from standard input, the program to standard output. It does not return.
func Main() {
	runtime.LockOSThread()
	var profile configs.Seccomp
	err := json.NewDecoder(os.Stdin).Decode(&profile)
	if err == nil {
		var listener int
		if listener, err = catchLoads(); err == nil {
			go func() {
				f, err := caught(listener)
				if err == nil {
					_, err = os.Stdout.Write(f.Bytes())
				}
				exit(err)
			}()
			// It ends in the load, which never returns.
			if _, err = seccomp.InitSeccomp(&profile); err == nil {
				err = errors.New("no filter was loaded")
			}
			if !errors.Is(err, unix.ENOMEM) {
				err = fmt.Errorf("%w: %w", errProfile, err)
			}
		} else if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // the kernel has no such listeners
			err = fmt.Errorf("%w: %w", errProfile, err)
		}
	}
	exit(err)
}

func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	if errors.Is(err, errProfile) {
		os.Exit(exitProfile)
	}
	os.Exit(1)
}

// catchLoads makes this thread's calls that load a filter wait for an answer on the listener that it returns.
func catchLoads() (listener int, err error) {
	// Offsets in struct seccomp_data; the low half of the first argument is that of its two words which the byte order
	// puts there.
	const number = 0
	argument := uint32(16)
	if one := uint16(1); *(*byte)(unsafe.Pointer(&one)) == 0 {
		argument += 4
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jt: 3},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PRCTL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: argument},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PR_SET_SECCOMP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// notification is struct seccomp_notif, and answer struct seccomp_notif_resp.
type (
	notification struct {
		ID         uint64
		PID, Flags uint32
		Number     int32
		Arch       uint32
		IP         uint64
		Args       [6]uint64
	}
	answer struct {
		ID    uint64
		Value int64
		Error int32
		Flags uint32
	}
)

// caught waits for the system call that loads the filter, and takes its program. Calls that only ask which features the
// kernel supports are let through. A call that a signal interrupts, such as those by which Go's runtime preempts, takes
// its notification with it (ENOENT), and begins anew with another one.
func caught(listener int) (*Filter, error) {
	for {
		var n notification
		err := control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("wait for the load of the filter: %w", err)
		}
		var flags, address uint64
		switch {
		case n.Number == unix.SYS_SECCOMP && n.Args[0] == unix.SECCOMP_SET_MODE_FILTER:
			flags, address = n.Args[1], n.Args[2]
		case n.Number == unix.SYS_PRCTL && n.Args[1] == unix.SECCOMP_MODE_FILTER:
			address = n.Args[2]
		}
		if address != 0 {
			return read(uint32(flags), uintptr(address))
		}
		a := answer{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		err = control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("let a call go on: %w", err)
		}
	}
}

func control(fd int, request uint, arg unsafe.Pointer) error {
	for {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno == 0 {
			return nil
		} else if errno != unix.EINTR {
			return errno
		}
	}
}

// read takes a program out of this process's own memory.
func read(flags uint32, address uintptr) (*Filter, error) {
	var prog [unsafe.Sizeof(unix.SockFprog{})]byte
	if err := copyFrom(address, prog[:]); err != nil {
		return nil, err
	}
	size := int(binary.NativeEndian.Uint16(prog[:])) * InstructionSize
	word := prog[unsafe.Offsetof(unix.SockFprog{}.Filter):]
	from := uintptr(binary.NativeEndian.Uint32(word))
	if len(word) >= 8 {
		from = uintptr(binary.NativeEndian.Uint64(word))
	}
	f := &Filter{Flags: flags, Program: make([]byte, size)}
	if err := copyFrom(from, f.Program); err != nil {
		return nil, err
	}
	return f, nil
}

func copyFrom(address uintptr, to []byte) error {
	if len(to) == 0 {
		return errors.New("the filter is empty")
	}
	local := []unix.Iovec{{Base: &to[0]}}
	local[0].SetLen(len(to))
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: address, Len: len(to)}}, 0)
	if err != nil {
		return os.NewSyscallError("process_vm_readv", err)
	}
	if n != len(to) {
		return errors.New("the filter is cut off")
	}
	return nil
}
