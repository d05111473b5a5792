package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// engine makes containers that are processes of the node like others, so that an ordinary user may run it. What it has
// for a cgroup is a directory with the files of version 2 that the keeper reads and writes.
type engine struct {
	t       *testing.T
	cgroups string // the directory that stands for the cgroup above all

	mu    sync.Mutex
	calls []string // what the keeper has asked for, as "start c"
	fails map[string]error
	dead  map[string]bool // calls at which the keeper is killed: they never return
	hangs map[string]bool // calls of which the next one ends with its context only
	hooks map[string]func()
	limit map[string]specs.LinuxResources
}

// engineName is the name of the engine in records.
const engineName protocol.Engine = "processes"

func newEngine(t *testing.T) *engine {
	return &engine{
		t: t, cgroups: t.TempDir(), fails: map[string]error{}, dead: map[string]bool{}, hangs: map[string]bool{},
		hooks: map[string]func(){}, limit: map[string]specs.LinuxResources{},
	}
}

// called notes a call, and returns the error that the test has set for it.
func (e *engine) called(act string, c runtime.Container) error {
	e.mu.Lock()
	call := act + " " + c.ID()
	e.calls = append(e.calls, call)
	err, dead, hook := e.fails[call], e.dead[call], e.hooks[call]
	delete(e.dead, call)
	delete(e.hooks, call)
	e.mu.Unlock()
	if hook != nil {
		hook()
	}
	if dead {
		select {}
	}
	return err
}

// has says whether the keeper has made a call.
func (e *engine) has(call string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.calls, call)
}

func (e *engine) failAt(call string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails[call] = err
}

func (e *engine) dieAt(call string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead[call] = true
}

// meanwhile has something done in the next call of this kind.
func (e *engine) meanwhile(call string, do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hooks[call] = do
}

// cgroup makes the directory of a container.
func (e *engine) cgroup(id string) (map[string]string, error) {
	dir := filepath.Join(e.cgroups, id)
	err := os.Mkdir(dir, 0o700)
	for name, content := range map[string]string{"cgroup.freeze": "0", "memory.events": "oom_kill 0\n"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return map[string]string{"": dir}, err
}

func (e *engine) Start(_ context.Context, c runtime.Container, l *runtime.Launch) error {
	if err := e.called("start", c); err != nil {
		return err
	}
	paths, err := e.cgroup(c.ID())
	if err != nil {
		return err
	}
	err = e.begin(c, l, l.Spec.Process, runtime.Started{
		Cgroups: paths,
		Setup:   protocol.Setup{Engine: engineName, Reason: "a test asks for it", ExecEngine: engineName},
	})
	if err != nil {
		err = errors.Join(err, os.RemoveAll(paths[""]))
	}
	return err
}

func (e *engine) Signal(_ context.Context, c runtime.Container, _ unix.Signal, _ bool) error {
	return e.called("signal", c)
}

func (e *engine) KillExec(_ context.Context, c runtime.Container, _ string, _ int) error {
	return e.called("kill exec", c)
}

func (e *engine) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	if err := c.Guard().Enter(ctx); err != nil {
		return stage.ErrInterrupted
	}
	defer c.Guard().Leave()
	if err := e.called("exec", c); err != nil {
		return err
	}
	e.mu.Lock()
	hangs := e.hangs["exec "+c.ID()]
	delete(e.hangs, "exec "+c.ID())
	e.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return stage.ErrInterrupted
	}
	return e.begin(c, l, l.Process, runtime.Started{})
}

// waiting is a program that becomes another when it reads a line, and ends when there is none.
const waiting = `read -r go <&3 || exit 121; exec 3<&-; exec "$@"`

// begin starts a process, has it registered, and lets its program begin.
func (e *engine) begin(c runtime.Container, l *runtime.Launch, p *specs.Process, res runtime.Started) error {
	args := p.Args
	if args[0] == protocol.ReaperProgram {
		args = []string{"sleep", "1000"}
	}
	wait, letGo, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wait.Close()
	defer letGo.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := l.IO.Files()
	res.Console = -1
	if l.Terminal() {
		master, slave, err := terminal()
		if err != nil {
			return err
		}
		defer slave.Close()
		res.Console = master
		files = [3]*os.File{slave, slave, slave}
	}
	attr := &syscall.ProcAttr{Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true, Setctty: l.Terminal()}}
	for _, f := range append(files[:], wait) {
		if f == nil {
			f = null
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	if res.PID, err = syscall.ForkExec("/bin/sh", append([]string{"sh", "-c", waiting, "sh"}, args...), attr); err != nil {
		return err
	}
	res.Waits = true
	if err = e.called("register", c); err == nil {
		err = l.Register(res)
	}
	if err == nil {
		err = e.called("begin", c)
	}
	if err != nil {
		if !l.Unregister() {
			_ = unix.Kill(res.PID, unix.SIGKILL)
			_, _ = unix.Wait4(res.PID, nil, 0, nil)
		}
		return err
	}
	_, err = letGo.WriteString("go\n")
	return err
}

// terminal makes a terminal. The master does not block.
func terminal() (master int, slave *os.File, err error) {
	if master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return -1, nil, os.NewSyscallError("open /dev/ptmx", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		unix.Close(master)
	}
	return master, slave, err
}

func (e *engine) Begun(c runtime.Container) bool {
	r := c.Record()
	return runtime.WaitingBegan(&r)
}

func (e *engine) Update(_ context.Context, c runtime.Container, r *specs.LinuxResources) error {
	err := e.called("update", c)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.limit[c.ID()] = *r
	return err
}

func (e *engine) freeze(c runtime.Container, sig unix.Signal, state string) error {
	r := c.Record()
	if err := c.Process().Signal(sig); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Cgroups[""], "cgroup.freeze"), []byte(state), 0o600)
}

func (e *engine) Pause(_ context.Context, c runtime.Container) error {
	return errors.Join(e.called("pause", c), e.freeze(c, unix.SIGSTOP, "1"))
}

func (e *engine) Resume(_ context.Context, c runtime.Container) error {
	return errors.Join(e.called("resume", c), e.freeze(c, unix.SIGCONT, "0"))
}

func (e *engine) Destroy(_ context.Context, c runtime.Container) error {
	if err := e.called("destroy", c); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(e.cgroups, c.ID()))
}

func (e *engine) Abort(ctx context.Context, c runtime.Container) error {
	r := c.Record()
	if r.PID > 0 { // what is killed ends some time later
		time.AfterFunc(100*time.Millisecond, func() { _ = unix.Kill(r.PID, unix.SIGKILL) })
	}
	return errors.Join(e.called("abort", c), e.Destroy(ctx, c))
}

func (e *engine) RemoveUnknown(ctx context.Context, c runtime.Container) error {
	return errors.Join(e.called("remove", c), e.Destroy(ctx, c))
}

func (e *engine) CompileSeccomp(context.Context, *specs.LinuxSeccomp) error { return nil }

func (e *engine) Freeze(_ context.Context, c runtime.Container) error {
	return errors.Join(e.called("freeze", c), e.freeze(c, unix.SIGSTOP, "1"))
}

func (e *engine) Checkpoint(_ context.Context, c runtime.Container, d *runtime.Dump) error {
	d.Group(0)
	if err := e.called("checkpoint", c); err != nil {
		return err
	}
	return errors.Join(e.freeze(c, unix.SIGSTOP, "1"), os.WriteFile(filepath.Join(d.Images, "pages"), nil, 0o600))
}
