package child

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Both architectures are little-endian: the low word of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// runtimeCalls are what Go's runtime does in a program of a few goroutines, and what rings need.
var runtimeCalls = []uint32{
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOSE, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_GETPID, unix.SYS_GETRANDOM,
	unix.SYS_GETTID, unix.SYS_MADVISE,
	unix.SYS_MUNMAP, unix.SYS_NANOSLEEP, unix.SYS_READ, unix.SYS_RESTART_SYSCALL, unix.SYS_RT_SIGACTION,
	unix.SYS_RT_SIGPROCMASK,
	unix.SYS_RT_SIGRETURN, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_YIELD, unix.SYS_SIGALTSTACK, unix.SYS_WRITE,
}

// filesystemCalls work on files by descriptor, and on the socket to the jail, which does what the child may not:
// there is no call that mounts, that opens a file by its handle, that makes a socket, or that reaches another process.
var filesystemCalls = append([]uint32{
	unix.SYS_FCHDIR, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_FGETXATTR,
	unix.SYS_FLISTXATTR,
	unix.SYS_FSETXATTR, unix.SYS_FSTAT, unix.SYS_FTRUNCATE, unix.SYS_GETDENTS64, unix.SYS_LINKAT,
	unix.SYS_LSEEK, unix.SYS_MKDIRAT,
	unix.SYS_MKNODAT, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READLINKAT,
	unix.SYS_RECVFROM, unix.SYS_RENAMEAT2, unix.SYS_SENDMSG, unix.SYS_STATX, unix.SYS_SYMLINKAT, unix.SYS_UNLINKAT,
	unix.SYS_UTIMENSAT,
}, archFilesystemCalls...)

// threadFlags are those with which Go's runtime makes a thread on all architectures. Without CLONE_THREAD
// it would be a process, without CLONE_VM one with memory of its own.
const threadFlags = archThreadFlags | unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
	unix.CLONE_SYSVSEM | unix.CLONE_THREAD

// argument is a test of the low word of an argument, whose high word must be 0.
type argument struct {
	index int
	cond  bpf.JumpTest
	value uint32
}

// conditional are calls that only some arguments are allowed for.
var conditional = []struct {
	number uint32
	args   []argument
}{
	{unix.SYS_CLONE, []argument{{0, bpf.JumpEqual, threadFlags}}},
	// Memory that is shared would not count against the limit, and none is ever executed.
	{unix.SYS_MMAP, []argument{{2, bpf.JumpBitsNotSet, unix.PROT_EXEC}, {3, bpf.JumpBitsNotSet, unix.MAP_SHARED}}},
	{unix.SYS_MPROTECT, []argument{{2, bpf.JumpBitsNotSet, unix.PROT_EXEC}}},
	// The runtime interrupts its own threads.
	{unix.SYS_TGKILL, []argument{{0, bpf.JumpEqual, uint32(os.Getpid())}}},
}

// refused are calls that fail and do not end the child: the runtime and the standard library do without them.
var refused = []struct {
	number uint32
	errno  unix.Errno
}{
	{unix.SYS_CLONE3, unix.ENOSYS},
	{unix.SYS_FCNTL, unix.EPERM},
	{unix.SYS_IOCTL, unix.ENOTTY},
	{unix.SYS_PRCTL, unix.EINVAL}, // names of memory mappings
	{unix.SYS_UNAME, unix.ENOSYS}, // whether the kernel can copy files by itself
}

// filter is the program for a role. What it does not name ends the process: no honest child makes such a call.
func filter(filesystem bool) []bpf.Instruction {
	allowed := slices.Clone(runtimeCalls)
	if filesystem {
		allowed = append(allowed, filesystemCalls...)
	}
	kill := bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		kill,
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}
	for _, number := range allowed {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 1}, allow)
	}
	for _, r := range refused {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.number, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(r.errno)})
	}
	for _, c := range conditional {
		var body []bpf.Instruction
		for _, a := range c.args {
			body = append(body,
				bpf.LoadAbsolute{Off: offArgs + 8*uint32(a.index) + 4, Size: 4}, // the high word
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, kill,
				bpf.LoadAbsolute{Off: offArgs + 8*uint32(a.index), Size: 4},
				bpf.JumpIf{Cond: a.cond, Val: a.value, SkipTrue: 1}, kill)
		}
		body = append(body, allow)
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.number, SkipTrue: uint8(len(body))})
		p = append(p, body...)
	}
	return append(p, kill)
}

// load makes a filter that of all threads of this process, and of those to come.
func load(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filters)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if thread != 0 {
		return os.NewSyscallError("seccomp(TSYNC)", unix.ESRCH)
	}
	return nil
}
