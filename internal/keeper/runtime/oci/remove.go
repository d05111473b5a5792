package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/runtime"
)

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
		return errors.Join(b.sweep(c.ID()), b.sweepLock(c.Record().Sandbox))
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

// sweepLock removes the lock file of a sandbox that is deleted. Each call for a container in it opens the file, and
// makes it anew: such a call may come later than the sweep of the sandbox's own container, where both end together. The
// lock of a sandbox that is there stays.
func (b *Engine) sweepLock(sandbox string) error {
	if sandbox == "" {
		return nil
	}
	left, err := b.states(sandbox)
	if err != nil || len(left) != 1 || filepath.Ext(left[0]) != ".lock" {
		return err
	}
	if err := os.Remove(left[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Abort kills and removes what there is of a container.
func (b *Engine) Abort(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	if err := b.killCalls(c.ID(), rec.CgroupsPath, rec.Sandbox); err != nil {
		return err
	}
	return errors.Join(
		cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd), b.remove(ctx, c),
		cgroupdir.DestroySpec(ctx, c.ID(), rec.CgroupsPath, rec.Systemd),
	)
}

// callsWait is how long killed calls of a binary may take to end.
const callsWait = 5 * time.Second

// killCalls kills the proxy of a container, and the calls of the binary for it that a keeper which was killed has left
// under way: they could make the container or its sandbox, or start the program, when the container is forgotten or is
// made again. All of them have a path in the container's bundle on their command line, as have the sandbox and the
// gofer that they have made.
func (b *Engine) killCalls(id, cgroup, sandbox string) error {
	bundle := b.dir.Bundle(id)
	ended, err := runtime.KillMatching(callsWait, []string{id, cgroup, sandbox}, func(line string) bool {
		line += "\x00"
		return strings.Contains(line, bundle+"/") || strings.Contains(line, bundle+"\x00")
	})
	if err == nil && !ended {
		err = fmt.Errorf("calls of %s for container %s do not end: %w", b.path, id, errdefs.ErrUnavailable)
	}
	return err
}
