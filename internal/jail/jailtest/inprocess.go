package jailtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/jail"
	"berth/internal/jail/child"
	"berth/internal/jail/ring"
	"berth/internal/jail/wire"
)

// InProcess does the work of children in goroutines of the test, with the rights of the test, so that what is around
// the children can be tested without root. Nothing is confined: no limit of a Spec but that of the answer holds. Files
// belong to the test, whoever they should belong to, and attributes that take the host's administrator are refused.
type InProcess struct {
	Roles child.Roles
}

// Goroutine is one child of an InProcess.
type Goroutine struct {
	ctx     context.Context
	role    string
	hangUps []func()
	stop    func() bool // of the watch over ctx
	done    chan struct{}

	mu     sync.Mutex
	killed bool

	// Written before done is closed:
	answer []byte
	err    error
}

// Start has a role's work done, as jail.Jail does.
func (p *InProcess) Start(ctx context.Context, spec jail.Spec) (*Goroutine, error) {
	for _, pair := range slices.Concat(spec.In, spec.Out) {
		defer pair.ClosePeer()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	work := p.Roles[spec.Role]
	if work == nil {
		return nil, fmt.Errorf("no role %q: %w", spec.Role.Name, errdefs.ErrFailedPrecondition)
	}
	g := &Goroutine{ctx: ctx, role: spec.Role.Name, done: make(chan struct{})}
	var opened closers
	t, err := g.task(&spec, &opened)
	if err != nil {
		opened.close()
		return nil, err
	}
	g.stop = context.AfterFunc(ctx, g.Kill)
	go func() {
		defer close(g.done)
		result, err := work(t)
		opened.close()
		if err != nil {
			told := wire.NewError(err)
			g.err = errors.Join(told.Check(), told)
			return
		}
		if g.answer, g.err = json.Marshal(result); int64(len(g.answer)) > max(spec.MaxAnswer, smallAnswer) {
			g.err = fmt.Errorf("its answer has more than %d bytes: %w", spec.MaxAnswer, errdefs.ErrResourceExhausted)
		}
	}()
	return g, nil
}

// smallAnswer is what a child may answer for whom no Spec says how much: an error.
const smallAnswer = 16 << 10

// Kill cuts the child off from all that it is fed with. What works on files alone goes on to its end.
func (g *Goroutine) Kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed = true
	for _, hangUp := range g.hangUps {
		hangUp()
	}
}

// Wait waits for the end of the work, and decodes its result.
func (g *Goroutine) Wait(result any) error {
	<-g.done
	g.stop()
	g.mu.Lock()
	killed := g.killed
	g.mu.Unlock()
	switch {
	case g.ctx.Err() != nil:
		return context.Cause(g.ctx)
	case killed:
		return fmt.Errorf("the child that was to %s: it was killed from outside: %w", g.role, errdefs.ErrResourceExhausted)
	case g.err != nil || result == nil:
		return g.err
	}
	return wire.Decode(g.answer, result)
}

// closers are closed together.
type closers []func() error

func (c closers) close() {
	for _, f := range c {
		_ = f()
	}
}

// task is what a child of a jail finds when it begins. What is opened for it is noted, even where that fails.
func (g *Goroutine) task(spec *jail.Spec, opened *closers) (*child.Task, error) {
	request, err := json.Marshal(spec.Task)
	if err != nil {
		return nil, err
	}
	t := &child.Task{Request: request, Xattrs: child.XattrsBy(calls(spec)), Chown: keepOwner}
	for _, pair := range spec.In {
		memory, socket, err := peer(pair)
		if err != nil {
			return nil, err
		}
		r, err := ring.OpenReader(memory, socket)
		if err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		*opened = append(*opened, r.Close)
		t.In, g.hangUps = append(t.In, r), append(g.hangUps, r.HangUp)
	}
	for _, pair := range spec.Out {
		memory, socket, err := peer(pair)
		if err != nil {
			return nil, err
		}
		w, err := ring.OpenWriter(memory, socket)
		if err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		*opened = append(*opened, w.Close)
		t.Out, g.hangUps = append(t.Out, w), append(g.hangUps, w.HangUp)
	}
	for _, file := range spec.Files {
		f, err := duplicate(file)
		if err != nil {
			return nil, err
		}
		*opened = append(*opened, f.Close)
		t.Files = append(t.Files, f)
	}
	for _, dir := range spec.Dirs {
		fd, err := unix.Openat(int(dir.File.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: dir.File.Name(), Err: err}
		}
		f := os.NewFile(uintptr(fd), dir.File.Name())
		*opened = append(*opened, f.Close)
		t.Dirs = append(t.Dirs, f)
	}
	return t, nil
}

// keepOwner leaves a file to the test.
func keepOwner(int, string, int, int) error { return nil }

// calls are those that a Spec has somebody else make for a child.
func calls(spec *jail.Spec) func(fd int, c *wire.Call) ([]byte, error) {
	return func(fd int, c *wire.Call) ([]byte, error) {
		if spec.Calls == nil {
			return nil, errors.New("a call of a role that has none")
		}
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		file := os.NewFile(uintptr(n), "file of a child")
		defer file.Close()
		return spec.Calls(c, file)
	}
}

// peer duplicates the other end of a ring. The socket waits in the runtime's poller, so that HangUp ends the wait.
func peer(pair *ring.Pair) (memory, socket *os.File, err error) {
	if memory, err = duplicate(pair.Memory); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(int(pair.Socket.Fd()), true); err != nil {
		return nil, nil, errors.Join(err, memory.Close())
	}
	if socket, err = duplicate(pair.Socket); err != nil {
		return nil, nil, errors.Join(err, memory.Close())
	}
	return memory, socket, nil
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
