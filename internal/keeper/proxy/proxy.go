package proxy

// #cgo CFLAGS: -Wall -O2
// #include "proxy.h"
import "C"

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
	"berth/internal/keeper/program"
	"berth/internal/keeper/stage"
	"berth/internal/keeper/timerslack"
)

// Unknown is the exit code of a proxy that could not learn of the container's end.
const Unknown = C.PROXY_UNKNOWN

// Request says what a proxy stands for: a container of an OCI runtime, or one of a shim.
type Request struct {
	ID      string
	Sandbox int // the process of the sandbox that the container is in, or of the shim
	// Streams are the container's ends of its pipes, and null devices where it has none.
	Streams [3]*os.File

	// Of an OCI runtime:

	Command []string // the runtime's path and the flags that all its calls have
	Env     []string // of the runtime
	Log     string   // the file to which the runtime's start writes its errors

	Shim *Shim // nil: an OCI runtime
}

// Shim is where the shim of a container is reached. It can open the container's streams by Path.
type Shim struct {
	Socket  string // a path, or a name after an @
	Service string // the name of its task service
	ExecID  string // of an exec; empty: the proxy is the container's
	// Input and ToInput are the keeper's end of the container's input, and the other end of Streams[0]; nil: there is no
	// input. The proxy copies from one to the other.
	Input, ToInput *os.File
	// FromOutput is the other end of Streams[1], if Input is a terminal, to which the proxy copies it; nil: it is none.
	FromOutput *os.File
	// Events is where the shim connects to send events, and Bundles the directory of the bundles; nil and empty: another
	// proxy has them.
	Events  *os.File
	Bundles string
	Log     *os.File // from which the proxy copies to the keeper's standard error; nil: it does not
}

// Proxy is a process that waits for Go.
type Proxy struct {
	PID    int
	keeper *os.File // a socket to it
}

// sealed is the program that proxies are executed from: see package program. It is opened with the first proxy.
var sealed struct {
	sync.Mutex
	file *os.File
}

func open(dir string) (*os.File, error) {
	sealed.Lock()
	defer sealed.Unlock()
	if sealed.file != nil {
		return sealed.file, nil
	}
	var err error
	if file, ok := program.File(); ok {
		sealed.file, err = exeseal.CloneBinary(strings.NewReader(file), int64(len(file)), C.PROXY_NAME, dir)
	} else {
		sealed.file, err = os.Open("/proc/self/exe")
	}
	if err != nil {
		return nil, fmt.Errorf("open the program of proxies: %w", err)
	}
	return sealed.file, nil
}

// Start starts a proxy, whose process the caller waits for. dir is for what sealing the program takes where the kernel
// knows no better way.
func Start(dir string, r *Request) (*Proxy, error) {
	exe, err := open(dir)
	if err != nil {
		return nil, err
	}
	sandbox, err := unix.PidfdOpen(r.Sandbox, 0)
	if err != nil {
		return nil, fmt.Errorf("open the sandbox's process %d: %w", r.Sandbox, os.NewSyscallError("pidfd_open", err))
	}
	sandboxFile := os.NewFile(uintptr(sandbox), "sandbox")
	defer sandboxFile.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil { // so that a read of it can have a deadline
		return nil, errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
	}
	p := &Proxy{keeper: os.NewFile(uintptr(pair[0]), "proxy")}
	theirs := os.NewFile(uintptr(pair[1]), "keeper")
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), exe.Fd()),
		Args: append([]string{C.PROXY_NAME, C.PROXY_WAITS, r.ID, r.Log}, r.Command...),
		Env:  r.Env, Dir: "/",
		Stdin: r.Streams[0], Stdout: r.Streams[1], Stderr: r.Streams[2],
		ExtraFiles: []*os.File{theirs, sandboxFile, os.Stderr},
		// Signals of a terminal, to the keeper that is run in one, are none to the container.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if shim := r.Shim; shim != nil {
		cmd.Args = []string{C.PROXY_NAME, C.PROXY_WAITS, r.ID, shim.ExecID, C.PROXY_SHIM, shim.Socket, shim.Service}
		cmd.ExtraFiles = append(cmd.ExtraFiles, shim.Input, shim.ToInput, shim.FromOutput, shim.Log, shim.Events)
		cmd.Dir = cmp.Or(shim.Bundles, cmd.Dir)
		cmd.Env = []string{}
		if shim.FromOutput != nil {
			cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, C.PROXY_FD_INPUT // its new sizes come as signals
		}
	}
	if err := timerslack.AsUsual(cmd.Start); err != nil {
		p.Close()
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p.PID = cmd.Process.Pid
	_ = cmd.Process.Release()
	return p, nil
}

// ErrNotStarted is the error of Go if the runtime has not started the container.
var ErrNotStarted = errors.New("the runtime has not started the container")

// NotStarted is ErrNotStarted with what a shim said.
type NotStarted struct{ Text string }

func (e *NotStarted) Error() string { return e.Text }
func (e *NotStarted) Unwrap() error { return ErrNotStarted }

// Go lets the container's program begin, and returns when it has. The error is ErrNotStarted if the runtime said that
// it cannot: the log of an OCI runtime says why, and a shim says it in a *NotStarted. The end of the context ends the
// wait.
func (p *Proxy) Go(ctx context.Context, limit time.Duration) error {
	if err := p.keeper.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = p.keeper.SetDeadline(time.Unix(1, 0)) })()
	if _, err := p.keeper.Write([]byte{0}); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("tell a proxy to go ahead: %w", err))
	}
	var answer [4 + C.PROXY_TEXT]byte
	n, err := p.keeper.Read(answer[:]) // one packet
	if err == nil && n < 4 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("start: it has not ended within %s: %w", limit, err)
		}
		return fmt.Errorf("the proxy of a container has ended during its start: %w", err)
	}
	switch {
	case binary.NativeEndian.Uint32(answer[:]) == 0:
		return nil
	case n > 4:
		return &NotStarted{strings.ToValidUTF8(string(answer[4:n]), "?")}
	}
	return ErrNotStarted
}

// Path is the path of one of a proxy's standard streams, for others to open it.
func (p *Proxy) Path(fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", p.PID, fd) }

// Of are the processes that are proxies of a container, or of execs in it.
func Of(id string) []int {
	var out []int
	all, _ := procfs.All()
	for _, pid := range all {
		args := strings.Split(procfs.CommandLine(pid), "\x00")
		if len(args) > C.PROXY_ARG_RUNTIME && args[0] == C.PROXY_NAME && args[C.PROXY_ARG_ID] == id {
			out = append(out, pid)
		}
	}
	return out
}

// Waits tells whether a process is a proxy that has not been told to go ahead.
func Waits(pid int) bool {
	return strings.HasPrefix(procfs.CommandLine(pid), C.PROXY_NAME+"\x00"+C.PROXY_WAITS+"\x00")
}

// Abandoned is the exit code of the proxy of an exec whose keeper has gone before it told the proxy to go ahead: the
// one of a stage.
const Abandoned = C.PROXY_ABANDONED

var _ = [1]struct{}{}[Abandoned-stage.Abandoned]

// Close gives the connection to a proxy up. One that has not been told to go ahead does not go any more.
func (p *Proxy) Close() { p.keeper.Close() }
