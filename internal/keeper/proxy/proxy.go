package proxy

// #cgo CFLAGS: -Wall -O2
// #include "proxy.h"
import "C"

import (
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

	"berth/internal/keeper/program"
	"berth/internal/keeper/timerslack"
)

// Unknown is the exit code of a proxy that could not learn of the container's end.
const Unknown = C.PROXY_UNKNOWN

// Request says what a proxy stands for.
type Request struct {
	ID      string
	Command []string // the runtime's path and the flags that all its calls have
	Env     []string // of the runtime
	Log     string   // the file to which the runtime's start writes its errors
	Sandbox int      // the process of the sandbox that the container is in
	// Streams are the container's ends of its pipes, and null devices where it has none.
	Streams [3]*os.File
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

// Go lets the container's program begin, and returns when it has. The error is ErrNotStarted if the runtime said that
// it cannot: its log says why.
func (p *Proxy) Go(limit time.Duration) error {
	if err := p.keeper.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := p.keeper.Write([]byte{0}); err != nil {
		return fmt.Errorf("tell a proxy to go ahead: %w", err)
	}
	var status [4]byte
	if _, err := io.ReadFull(p.keeper, status[:]); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("start: it has not ended within %s: %w", limit, err)
		}
		return fmt.Errorf("the proxy of a container has ended during its start: %w", err)
	}
	if binary.NativeEndian.Uint32(status[:]) != 0 {
		return ErrNotStarted
	}
	return nil
}

// Close gives the connection to a proxy up. One that has not been told to go ahead does not go any more.
func (p *Proxy) Close() { p.keeper.Close() }
