package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/firstbytes"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/runtime"
)

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
			process.Env = runtime.WithMark(process.Env, l.ExecID)
			defer func() { runtime.MoveExec(res.PID, paths, l.SubDir, l.ExecID) }()
		}
	}
	if l.Traced {
		process.Env, res.Marked = runtime.WithMark(process.Env, l.ExecID), true
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

const (
	helpLimit = 5 * time.Second // of a call for what the binary says of itself
	maxHelp   = 64 << 10        // bytes of it
)

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
		case strings.Contains(text, "<controller>"):
			return controller + ":" + name
		}
	}
	return ""
}

// execHelp holds by path what a runtime says about its exec.
var execHelp sync.Map
