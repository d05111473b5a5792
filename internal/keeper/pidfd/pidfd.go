package pidfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrStopped is returned by Wait after Stop.
var ErrStopped = errors.New("wait stopped")

// Exit is how a process ended.
type Exit struct {
	Code int // 128+signal for a signal
	// Known is false where neither this process was the parent nor the kernel kept the code (before Linux 6.15).
	Known bool
}

// FD refers to one process, whatever becomes of its number.
type FD struct {
	pid   int
	child bool
	file  *os.File
	raw   syscall.RawConn

	mu      sync.Mutex
	stopped bool
}

// Open refers to the process that has this number now. A child is one of this process, which Wait may reap.
func Open(pid int, child bool) (*FD, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	return New(fd, pid, child)
}

// New takes over a descriptor of the process pid.
func New(fd, pid int, child bool) (*FD, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd:"+strconv.Itoa(pid))
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &FD{pid: pid, child: child, file: f, raw: raw}, nil
}

// PID is the process's number, which may belong to another one once it is reaped.
func (f *FD) PID() int { return f.pid }

// Control calls fn with the descriptor, which stays open meanwhile. It is os.ErrClosed after Close.
func (f *FD) Control(fn func(fd int)) error {
	if err := f.raw.Control(func(fd uintptr) { fn(int(fd)) }); err != nil {
		return os.ErrClosed // the only error of a file's Control, which package os does not translate
	}
	return nil
}

// Close closes the descriptor and ends Wait.
func (f *FD) Close() error { return f.file.Close() }

// Signal sends a signal. It is os.ErrProcessDone once the process has ended.
func (f *FD) Signal(sig syscall.Signal) error {
	var serr error
	if err := f.Control(func(fd int) { serr = unix.PidfdSendSignal(fd, sig, nil, 0) }); err != nil {
		return err
	}
	if serr == unix.ESRCH {
		return os.ErrProcessDone
	}
	return serr
}

// Stop makes Wait return ErrStopped, now or when it is called.
func (f *FD) Stop() {
	f.mu.Lock()
	f.stopped = true
	_ = f.file.SetReadDeadline(time.Unix(1, 0))
	f.mu.Unlock()
}

// Resume undoes Stop.
func (f *FD) Resume() {
	f.mu.Lock()
	f.stopped = false
	_ = f.file.SetReadDeadline(time.Time{})
	f.mu.Unlock()
}

// reapGrace is how long the code of another's child may take to appear: its parent has to reap it first.
const reapGrace = 2 * time.Second

// Wait waits for the process to end and reaps it if it is a child of this one.
func (f *FD) Wait() (Exit, error) {
	for {
		var exit Exit
		var waiting bool // the process has ended, its parent has not reaped it
		err := f.raw.Read(func(fd uintptr) bool {
			var done bool
			exit, done, waiting = f.poll(int(fd))
			if waiting {
				f.mu.Lock()
				if !f.stopped {
					_ = f.file.SetReadDeadline(time.Now().Add(reapGrace))
				}
				f.mu.Unlock()
			}
			return done
		})
		if err == nil {
			return exit, nil
		}
		f.mu.Lock()
		stopped := f.stopped
		f.mu.Unlock()
		switch {
		case stopped || !errors.Is(err, os.ErrDeadlineExceeded):
			return Exit{}, errors.Join(ErrStopped, err)
		case waiting:
			f.final(&exit)
			return exit, nil
		}
		// A deadline that Stop set and Resume has taken back.
	}
}

// final is the last look at a process that has ended.
func (f *FD) final(exit *Exit) {
	*exit = Exit{Code: 255}
	_ = f.Control(func(fd int) {
		if now, done, _ := f.poll(fd); done {
			*exit = now
		}
	})
}

// poll looks at the process once.
func (f *FD) poll(fd int) (exit Exit, done, waiting bool) {
	var ws unix.WaitStatus
	for f.child {
		pid, err := unix.Wait4(f.pid, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err == nil && pid == f.pid {
			return Exit{Code: code(ws), Known: true}, true, false
		}
		if err == nil {
			return Exit{}, false, false // our child, and it lives
		}
		break // somebody else has reaped it
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return Exit{}, false, false
	}
	if ws, ok := info(fd); ok {
		return Exit{Code: code(ws), Known: true}, true, false
	}
	if ws, ok := zombie(f.pid); ok {
		return Exit{Code: code(ws), Known: true}, true, false
	}
	if p[0].Revents&unix.POLLHUP == 0 && exists(f.pid) {
		return Exit{}, false, true
	}
	// It may have been reaped between the two looks.
	if ws, ok := info(fd); ok {
		return Exit{Code: code(ws), Known: true}, true, false
	}
	return Exit{Code: 255}, true, false // this kernel keeps no code
}

// info asks the kernel for the wait status that a reaped process left (PIDFD_INFO_EXIT, Linux 6.15).
func info(fd int) (unix.WaitStatus, bool) {
	in := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&in)))
	if errno != 0 || in.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return unix.WaitStatus(in.Exit_code), true
}

// zombie reads the wait status of a process that its parent has yet to reap (the last field of proc_pid_stat(5)).
func zombie(pid int) (unix.WaitStatus, bool) {
	fields, err := statFields(pid)
	if err != nil || len(fields) < 50 || fields[0] != "Z" {
		return 0, false
	}
	ws, err := strconv.ParseUint(fields[49], 10, 32)
	return unix.WaitStatus(ws), err == nil
}

func exists(pid int) bool { return unix.Kill(pid, 0) != unix.ESRCH }

// StartTime is when the process started, in clock ticks since boot: with the number, it names a process for good.
func StartTime(pid int) (uint64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(fields) < 20 {
		return 0, fmt.Errorf("process %d: short stat", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Alive says whether the process with this number and start time exists and is no zombie.
func Alive(pid int, start uint64) bool {
	fields, err := statFields(pid)
	if err != nil || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	t, err := strconv.ParseUint(fields[19], 10, 64)
	return err == nil && t == start
}

// statFields are those of /proc/PID/stat from the state on; the name before it may hold anything.
// readStat reads proc_pid_stat(5), which is shorter than the buffer: this is on the way of every exec.
func readStat(pid int) (string, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "open", Path: path, Err: err}
		}
		var b [2048]byte
		n, err := unix.Read(fd, b[:])
		unix.Close(fd)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		}
		return string(b[:n]), nil
	}
}

func statFields(pid int) ([]string, error) {
	s, err := readStat(pid)
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(s, ')')
	if i < 0 {
		return nil, fmt.Errorf("process %d: malformed stat", pid)
	}
	return strings.Fields(s[i+1:]), nil
}

func code(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
