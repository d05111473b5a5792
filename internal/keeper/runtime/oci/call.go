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
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/firstbytes"
	"berth/internal/keeper/console"
	"berth/internal/keeper/null"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/timerslack"
)

const (
	// runtimeLimit bounds one call of the binary.
	runtimeLimit = 2 * time.Minute
	consoleFile  = "console.sock"
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
