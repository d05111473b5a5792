// Package oci is the engine that sets up containers with the command line of an OCI runtime, such as runc or crun.
package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/firstbytes"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/null"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/timerslack"
)

// Engine makes containers with one OCI runtime binary.
type Engine struct {
	dir      runtime.Dir
	spawning runtime.Spawning
	path     string
	root     string
	systemd  bool
	flags    []string // that the node's configuration names
	sandbox  bool     // the container is in a sandbox: see sandbox.go
	// sandboxes is also set for the container that makes the sandbox: the binary keeps files as runsc does.
	sandboxes bool
}

var _ runtime.Runtime = (*Engine)(nil)

// New returns the engine for the binary that a container's record names.
func New(dir runtime.Dir, spawning runtime.Spawning, r *record.Container) *Engine {
	return &Engine{dir: dir, spawning: spawning, path: r.Runtime, root: r.RuntimeRoot, systemd: r.Systemd,
		flags: r.RuntimeFlags, sandbox: r.Sandbox != "", sandboxes: r.Sandbox != "" || r.Reaper}
}

const (
	consoleFile  = "console.sock"
	runtimeLimit = 2 * time.Minute // of one call of the binary
	helpLimit    = 5 * time.Second // of a call for what the binary says of itself
	maxHelp      = 64 << 10        // bytes of it
	// bundleVersion is the specification version in the bundles for OCI runtimes. Older runtimes refuse a newer 1.x,
	// although they would only have to ignore unknown fields.
	bundleVersion = "1.0.2"
)

// call runs the binary. Its own complaints come from its log, since its standard error may be the container's. The end
// of the context does not end it: a binary that is killed half way leaves what nobody else removes.
func (b *Engine) call(ctx context.Context, c runtime.Container, streams runtime.Stdio, args ...string) error {
	return b.callWithin(ctx, runtimeLimit, c, streams, args...)
}

// callWithin is call with another limit of time.
func (b *Engine) callWithin(
	ctx context.Context, limit time.Duration, c runtime.Container, streams runtime.Stdio, args ...string,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	end := b.spawning()
	defer end()
	dir := b.dir.Bundle(c.ID())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	logFile, err := b.newLog(dir)
	if err != nil {
		return err
	}
	defer os.Remove(logFile)
	command := append(b.command(), "--log", logFile, "--log-format", "json")
	cmd := exec.CommandContext(ctx, b.path, append(command[1:], args...)...)
	cmd.Dir = dir
	cmd.Env = environment()
	// A runtime may change the owner of its standard streams to the container's user, and the container then has them.
	nothing, err := null.Open()
	if err != nil {
		return err
	}
	defer nothing.Close()
	out := firstbytes.Buffer{Left: 4096}
	cmd.Stdin, cmd.Stdout = cmp.Or(streams.In, nothing), cmp.Or(streams.Out, nothing)
	cmd.Stderr = cmp.Or(streams.Err, nothing)
	if streams == (runtime.Stdio{}) {
		cmd.Stderr = &out
		// A container's processes must not keep this call waiting through its standard error.
		cmd.WaitDelay = time.Second
	}
	if err = timerslack.AsUsual(cmd.Start); err == nil {
		err = cmd.Wait()
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("runtime %s: %w: %w", b.path, err, errdefs.ErrFailedPrecondition)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: it has not ended within %s: %w", filepath.Base(b.path), args[0], limit, ctx.Err())
	}
	msg := lastMessage(logFile)
	if msg == "" {
		msg = strings.TrimSpace(out.String())
	}
	if msg == "" {
		return fmt.Errorf("%s %s: %w", filepath.Base(b.path), args[0], err)
	}
	return fmt.Errorf("%s %s: %s", filepath.Base(b.path), args[0], msg)
}

// newLog makes a file for the errors of a call, whose name it returns.
func (b *Engine) newLog(dir string) (string, error) {
	f, err := os.CreateTemp(dir, "log-")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// command is the binary, with the flags that all calls have.
func (b *Engine) command() []string {
	command := append([]string{b.path}, b.flags...)
	command = append(command, "--root", b.root)
	if b.systemd {
		command = append(command, "--systemd-cgroup")
	}
	return command
}

// environment is that of the binary.
func environment() []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	for _, k := range []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// maxLog bounds what is read of a runtime's log, which repeats what a container's configuration and files say.
const maxLog = 1 << 20

// lastMessage is the last error in a runtime's log.
func lastMessage(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLog))
	if err != nil {
		return ""
	}
	last := ""
	for line := range strings.Lines(string(b)) {
		var e struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &e) == nil && e.Msg != "" && (last == "" || e.Level == "error" ||
			e.Level == "fatal") {
			last = e.Msg
		}
	}
	return last
}

// console listens where a runtime sends a terminal's master, and returns the arguments that tell the runtime so. Both
// reach the socket through a descriptor of its directory, since the path may not fit a socket's address. Without a
// terminal there are no arguments, and receive returns -1.
func (b *Engine) console(
	c runtime.Container, terminal bool,
) (args []string, receive func() (int, error), done func(), err error) {
	if !terminal {
		return nil, func() (int, error) { return -1, nil }, func() {}, nil
	}
	dir, err := os.MkdirTemp(b.dir.Bundle(c.ID()), "console-")
	if err != nil {
		return nil, nil, nil, err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, nil, err
	}
	path := fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), fd, consoleFile)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		unix.Close(fd)
		os.RemoveAll(dir)
		return nil, nil, nil, err
	}
	done = func() {
		l.Close()
		unix.Close(fd)
		os.RemoveAll(dir)
	}
	receive = func() (int, error) {
		_ = l.SetDeadline(time.Now().Add(5 * time.Second)) // the runtime has returned: it is in the backlog
		conn, err := l.AcceptUnix()
		if err != nil {
			return -1, fmt.Errorf("receive terminal: %w", err)
		}
		defer conn.Close()
		raw, err := conn.SyscallConn()
		if err != nil {
			return -1, err
		}
		master, rerr := -1, error(nil)
		err = raw.Read(func(s uintptr) bool {
			master, rerr = console.Receive(int(s))
			return !errors.Is(rerr, unix.EAGAIN)
		})
		return master, errors.Join(err, rerr)
	}
	return []string{"--console-socket", path}, receive, done, nil
}

// Start runs create, Register, and start.
func (b *Engine) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	res := runtime.Started{Console: -1, Setup: record.OCISetup(b.path)}
	spec := *l.Spec
	spec.Version = bundleVersion
	if err := b.dir.WriteBundle(c.ID(), &spec); err != nil {
		return err
	}
	pidFile := filepath.Join(b.dir.Bundle(c.ID()), "pid")
	args := []string{"create", "--bundle", b.dir.Bundle(c.ID()), "--pid-file", pidFile}
	terminal, receive, done, err := b.console(c, l.Terminal())
	if err != nil {
		return err
	}
	defer done()
	args = append(append(args, terminal...), c.ID())
	undo := func(err error) error {
		if derr := b.Abort(ctx, c); derr != nil {
			c.Log().Warn("remove container that did not start", "error", derr)
		}
		return err
	}
	streams := l.IO
	if b.sandbox {
		streams = runtime.Stdio{} // the call of start gives them to the container
	}
	if err := b.call(ctx, c, streams, args...); err != nil {
		return undo(err)
	}
	if res.PID, err = readPID(pidFile); err != nil {
		return undo(err)
	}
	if res.Console, err = receive(); err != nil {
		return undo(err)
	}
	if b.sandbox {
		if err := b.startInSandbox(c, l, res); err != nil {
			return undo(err)
		}
		return nil
	}
	if res.Cgroups, err = cgroupdir.OfProcess(res.PID); err != nil {
		if res.Console >= 0 {
			unix.Close(res.Console)
		}
		return undo(err)
	}
	if err := l.Register(res); err != nil {
		return undo(err)
	}
	if err := b.call(ctx, c, runtime.Stdio{}, "start", c.ID()); err != nil {
		return undo(err)
	}
	return nil
}

// Begun says whether the container's program has begun. OCI runtimes report that in different ways, so Begun looks at
// the process's command line: it changes when the waiting process executes the program.
//
// The process of a container in a sandbox is a proxy, whose command line changes when it lets the program begin.
func (b *Engine) Begun(c runtime.Container) bool {
	rec := c.Record()
	return runtime.WaitingBegan(&rec)
}

// Exec starts a further process. The runtime does not wait, so that the program runs when Register is called.
func (b *Engine) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	res, err := b.startExec(ctx, c, l)
	if err != nil {
		return err
	}
	if err := l.Register(res); err != nil {
		if b.sandbox {
			if kerr := b.KillExec(ctx, c, l.ExecID, res.Inner); kerr != nil {
				c.Log().Warn("kill an exec that cannot be followed", "exec_id", l.ExecID, "error", kerr)
			}
		}
		_ = unix.Kill(res.PID, unix.SIGKILL)
		return err
	}
	return nil
}

func (b *Engine) startExec(ctx context.Context, c runtime.Container, l *runtime.Launch) (runtime.Started, error) {
	res := runtime.Started{Console: -1}
	paths := c.Record().Cgroups
	if cgroupdir.Frozen(paths) {
		return res, fmt.Errorf("container %s is paused: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	dir := b.dir.Bundle(c.ID())
	spec, pidFile := filepath.Join(dir, "exec-"+l.ExecID+".json"), filepath.Join(dir, "exec-"+l.ExecID+".pid")
	defer os.Remove(spec)
	defer os.Remove(pidFile)
	args := []string{"exec", "--process", spec, "--detach", "--pid-file", pidFile}
	if b.sandbox {
		defer os.Remove(pidFile + innerSuffix)
		args = append(args, "--internal-pid-file", pidFile+innerSuffix)
	}
	process := *l.Process
	if l.SubDir != "" {
		if flag := b.cgroupFlag(l.Sub); flag != "" {
			args = append(args, "--cgroup", flag)
		} else {
			// The runtime cannot start it there, and what leaves its parents before it is moved could not be found.
			process.Env = append(slices.Clone(process.Env), execMark+l.ExecID)
			defer func() { moveTree(res.PID, paths, l.SubDir, l.ExecID) }()
		}
	}
	js, err := json.Marshal(&process)
	if err != nil {
		return res, err
	}
	if err := os.WriteFile(spec, js, 0o600); err != nil {
		return res, err
	}
	terminal, receive, done, err := b.console(c, l.Terminal())
	if err != nil {
		return res, err
	}
	defer done()
	args = append(append(args, terminal...), c.ID())
	if err := b.call(ctx, c, l.IO, args...); err != nil {
		return res, err
	}
	if res.PID, err = readPID(pidFile); err != nil {
		return res, err
	}
	if b.sandbox {
		if res.Inner, err = readPID(pidFile + innerSuffix); err != nil {
			return res, err
		}
	}
	if res.Console, err = receive(); err != nil {
		_ = unix.Kill(res.PID, unix.SIGKILL)
	}
	return res, err
}

// cgroupFlag returns the flag with which the binary starts an exec in a cgroup of its own below the container's. It has
// the v1 controller if the binary supports that, as runc does. It is empty if the binary has no such flag.
func (b *Engine) cgroupFlag(sub map[string]string) string {
	help, ok := execHelp.Load(b.path)
	if !ok {
		ctx, cancel := context.WithTimeout(context.Background(), helpLimit)
		defer cancel()
		out := firstbytes.Buffer{Left: maxHelp}
		cmd := exec.CommandContext(ctx, b.path, "exec", "--help")
		cmd.Stdout, cmd.Stderr = &out, &out
		firstbytes.Group(cmd)
		if err := cmd.Run(); ctx.Err() != nil || err != nil && len(out.Bytes()) == 0 {
			return ""
		}
		help = out.String()
		execHelp.Store(b.path, help)
	}
	text := help.(string)
	for controller, name := range sub {
		switch {
		case !strings.Contains(text, "--cgroup"):
		case controller == "":
			return name
		case strings.Contains(text, "<controller>"):
			return controller + ":" + name
		}
	}
	return ""
}

// execHelp holds by path what a runtime says about its exec.
var execHelp sync.Map

// execMark is the environment variable that finds what an exec has started, for runtimes that know no sub-cgroups.
const execMark = "BERTH_EXEC="

// maxEnvironment is how many bytes of a process's environment are looked at. What execve takes is shorter.
const maxEnvironment = 8 << 20

// moveTree puts a process and all that it has started by now into a cgroup.
func moveTree(pid int, paths map[string]string, dir, execID string) {
	if pid <= 0 {
		return
	}
	for range 10 {
		moved := 0
		for _, p := range append(cgroupdir.Family(pid, paths), marked(paths, execID)...) {
			if !inCgroup(dir, p) && cgroupdir.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(p)) == nil {
				moved++
			}
		}
		if moved == 0 {
			return
		}
	}
}

// marked are the processes of a container with an exec's mark in their environment.
func marked(paths map[string]string, execID string) []int {
	pids, err := cgroups.GetAllPids(cgroupdir.Members(paths))
	if err != nil {
		return nil
	}
	var out []int
	for _, p := range pids {
		if strings.Contains("\x00"+procfs.Environment(p, maxEnvironment), "\x00"+execMark+execID+"\x00") {
			out = append(out, p)
		}
	}
	return out
}

func inCgroup(dir string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// readPID reads the number of a process that a runtime has started. It is a process's that can be killed: 0 and
// negative ones stand for many.
func readPID(path string) (int, error) {
	s, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(s)), 10, 32)
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s: %.32q is no process of a container", path, s)
	}
	return int(pid), nil
}

// Update runs update.
func (b *Engine) Update(ctx context.Context, c runtime.Container, r *specs.LinuxResources) error {
	js, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if b.sandbox {
		return notInSandbox(c, "limits")
	}
	if err := os.MkdirAll(b.dir.Bundle(c.ID()), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(b.dir.Bundle(c.ID()), "resources-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(js)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return b.call(ctx, c, runtime.Stdio{}, "update", "--resources", f.Name(), c.ID())
}

// Pause runs pause.
func (b *Engine) Pause(ctx context.Context, c runtime.Container) error {
	if b.sandbox {
		return notInSandbox(c, "a pause")
	}
	if cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return b.call(ctx, c, runtime.Stdio{}, "pause", c.ID())
}

// Resume runs resume.
func (b *Engine) Resume(ctx context.Context, c runtime.Container) error {
	if !cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return b.call(ctx, c, runtime.Stdio{}, "resume", c.ID())
}

// Destroy runs delete, and removes what the binary does not know of: cgroups of execs, and all of it if it lost its
// state.
func (b *Engine) Destroy(ctx context.Context, c runtime.Container) error {
	if err := b.remove(ctx, c); err != nil {
		return err
	}
	cgroupdir.RemoveMembers(c.Record().Cgroups, c.Log())
	return nil
}

func (b *Engine) remove(ctx context.Context, c runtime.Container) error {
	states, err := b.states(c.ID())
	if err != nil || len(states) == 0 {
		return err
	}
	err = b.call(ctx, c, runtime.Stdio{}, "delete", "--force", c.ID())
	if err == nil {
		return b.sweep(c.ID())
	}
	if errdefs.IsFailedPrecondition(err) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	// A binary whose own record of the container is spoilt would refuse for ever.
	if unknown := b.call(ctx, c, runtime.Stdio{}, "state", c.ID()); unknown == nil ||
		errdefs.IsFailedPrecondition(unknown) || errors.Is(unknown, context.DeadlineExceeded) {
		return err
	}
	c.Log().Warn("the OCI runtime does not know its container any more: it is removed without the runtime", "error", err)
	rec := c.Record()
	if err := cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd); err != nil {
		return err
	}
	var left error
	for _, path := range states {
		left = errors.Join(left, os.RemoveAll(path))
	}
	return left
}

// states are the files that the binary has of a container: a directory of its name, or files as runsc has them, whose
// names are only known from a list of those of all containers.
func (b *Engine) states(id string) ([]string, error) {
	path := filepath.Join(b.root, id)
	if !b.sandboxes {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return []string{path}, nil // what cannot be looked at is there: the binary says more
	}
	entries, err := os.ReadDir(b.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for what %s has of container %s: %w", b.path, id, err)
	}
	var out []string
	for _, e := range entries {
		if name := e.Name(); name == id || ofRunsc(name, id) {
			out = append(out, filepath.Join(b.root, name))
		}
	}
	return out, nil
}

// ofRunsc tells whether a file is one that runsc has of a container: its state, its lock, and the socket of a sandbox.
func ofRunsc(name, id string) bool {
	return strings.HasPrefix(name, id+"_sandbox:") || name == "runsc-"+id+".sock"
}

// sweep removes what runsc has left of a container that is deleted: a call of it was killed before it had saved a
// state.
func (b *Engine) sweep(id string) error {
	if !b.sandboxes {
		return nil
	}
	left, err := b.states(id)
	for _, path := range left {
		if ofRunsc(filepath.Base(path), id) {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// Abort kills and removes what there is of a container.
func (b *Engine) Abort(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	if err := b.killCalls(c.ID()); err != nil {
		return err
	}
	return errors.Join(
		cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd), b.remove(ctx, c),
		cgroupdir.DestroySpec(c.ID(), rec.CgroupsPath, rec.Systemd),
	)
}

const (
	// callsWait is how long killed calls of a binary may take to end.
	callsWait = 5 * time.Second
	// maxArguments is how many bytes of a process's arguments are looked at: the flags of a runtime come first.
	maxArguments = 64 << 10
)

// killCalls kills the proxy of a container, and the calls of the binary for it that a keeper which was killed has left
// under way: they could make the container or its sandbox, or start the program, when the container is forgotten or is
// made again. All of them have a path in the container's bundle on their command line, as have the sandbox and the
// gofer that they have made.
func (b *Engine) killCalls(id string) error {
	bundle := b.dir.Bundle(id)
	// One that is found may have started another one before it is killed, and a killed one takes a moment to end.
	for deadline := time.Now().Add(callsWait); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		killed := false
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == os.Getpid() {
				continue
			}
			line := procfs.Arguments(pid, maxArguments) + "\x00"
			if strings.Contains(line, bundle+"/") || strings.Contains(line, bundle+"\x00") {
				killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
			}
		}
		if !killed {
			return nil
		}
	}
	return fmt.Errorf("calls of %s for container %s do not end: %w", b.path, id, errdefs.ErrUnavailable)
}
