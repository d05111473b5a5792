package shim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	api "berth/api/shim"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/runtime"
)

const (
	// deleteLimit is how long a container may take to end that the shim is to remove.
	deleteLimit = 5 * time.Second
	// shutdownLimit is how long a shim may take to end by itself.
	shutdownLimit = 3 * time.Second
	// lateLimit is how long a call that a killed keeper has made may take to have an effect.
	lateLimit = time.Second
)

// Destroy has the shim remove the container. If the shim has ended, or cannot do it, its binary does it. With the pod's
// init, the shim ends.
func (b *Engine) Destroy(ctx context.Context, c runtime.Container) error {
	if err := b.remove(ctx, c); err != nil {
		return err
	}
	cgroupdir.RemoveMembers(c.Record().Cgroups, c.Log())
	return nil
}

func (b *Engine) remove(ctx context.Context, c runtime.Container) error {
	err := b.deleteTask(ctx, c)
	if b.first {
		err = errors.Join(b.endShim(ctx, c), err)
	}
	if err != nil {
		if !errors.Is(err, errGone) {
			c.Log().Warn("the shim does not remove its container: its binary does", "error", err)
		}
		if err := b.clean(ctx, c); err != nil {
			return err
		}
	}
	if b.first {
		if err := os.Remove(b.events(c.ID())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return unmount(filepath.Join(b.dir.Bundle(c.ID()), "rootfs"))
}

// deleteTask has the shim remove a container, which is killed if it runs.
func (b *Engine) deleteTask(ctx context.Context, c runtime.Container) error {
	ctx, cancel := context.WithTimeout(ctx, deleteLimit)
	defer cancel()
	request := &api.TaskRequest{Id: c.ID()}
	for {
		err := b.call(ctx, callLimit, "Delete", request, &api.Empty{})
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if !stillRuns(err) {
			return err
		}
		kerr := b.call(ctx, callLimit, "Kill", &api.KillRequest{Id: c.ID(), Signal: uint32(unix.SIGKILL), All: true},
			&api.Empty{})
		if kerr != nil && !errdefs.IsNotFound(kerr) {
			err = errors.Join(err, kerr)
		}
		if sleep(ctx) != nil {
			return err
		}
	}
}

// endShim asks the shim to end, waits for it, and kills it if it takes long.
func (b *Engine) endShim(ctx context.Context, c runtime.Container) error {
	if b.shim.Address == "" {
		return errGone
	}
	err := b.call(ctx, killLimit, "Shutdown", &api.ShutdownRequest{Id: c.ID()}, &api.Empty{})
	gone := errors.Is(err, errGone)
	for deadline := time.Now().Add(shutdownLimit); b.lives() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if b.lives() {
		c.Log().Warn("the shim of a pod that is removed does not end: it is killed", "pid", b.shim.PID)
		if err := b.killShim(); err != nil {
			return err
		}
		gone = true
	}
	// One that was killed leaves its socket.
	if strings.HasPrefix(b.shim.Address, "/") {
		if err := os.Remove(b.shim.Address); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.Log().Warn("remove the socket of a shim", "error", err)
		}
	}
	if gone && err != nil {
		return errGone
	}
	return nil
}

// lives says whether the shim runs. A zombie has ended, though nobody has reaped it yet.
func (b *Engine) lives() bool {
	if b.shim.PID == 0 || !pidfd.Alive(b.shim.PID, b.shim.Start) {
		return false
	}
	f := procfs.Status(b.shim.PID)
	return len(f) > 0 && f[0] != "Z"
}

// killShim kills the shim, and waits for its end.
func (b *Engine) killShim() error {
	for deadline := time.Now().Add(deleteLimit); b.lives(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("shim %s, process %d, does not end: %w", b.path, b.shim.PID, errdefs.ErrUnavailable)
		}
		_ = unix.Kill(b.shim.PID, unix.SIGKILL)
	}
	return nil
}

// clean has the shim's binary remove what there is of a container whose shim has ended.
func (b *Engine) clean(ctx context.Context, c runtime.Container) error {
	bundle := b.dir.Bundle(c.ID())
	if _, err := os.Stat(filepath.Join(bundle, "config.json")); errors.Is(err, os.ErrNotExist) {
		return nil // nothing was made of it
	}
	_, err := b.run(ctx, c.ID(), nil, "-bundle", bundle, "delete")
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		// As containerd does: it fails where there is nothing to remove, too.
		c.Log().Warn("the shim's binary has not removed a container", "error", err)
		return nil
	}
	return err
}

// unmount unmounts what a shim may have left mounted, so that nothing behind it is removed with the bundle.
func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// Abort kills and removes what there is of a container. The shim of a pod whose init has not started is not in the
// record yet.
func (b *Engine) Abort(ctx context.Context, c runtime.Container) error {
	killProxies(c.ID())
	if b.first {
		if err := b.killStarted(c.ID(), c.Record().CgroupsPath); err != nil {
			return err
		}
		if b.shim.Address == "" {
			_ = os.Remove(b.usualSocket(c.ID()))
		}
	} else {
		b.awaitLate(ctx, c)
	}
	return b.abort(ctx, c)
}

// abort removes what this keeper has made of a container that has not started.
func (b *Engine) abort(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	return errors.Join(
		cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd), b.remove(ctx, c),
		cgroupdir.DestroySpec(ctx, c.ID(), rec.CgroupsPath, rec.Systemd),
	)
}

// awaitLate waits for a container that a keeper, which was killed, has asked for, and which the shim is still making.
func (b *Engine) awaitLate(ctx context.Context, c runtime.Container) {
	for deadline := time.Now().Add(lateLimit); time.Now().Before(deadline); {
		var state api.StateResponse
		err := b.call(ctx, callLimit, "State", &api.TaskRequest{Id: c.ID()}, &state)
		if !errdefs.IsNotFound(err) || sleep(ctx) != nil {
			return
		}
	}
}

// killProxies kills the proxies of a container and of its execs.
func killProxies(id string) {
	for _, pid := range proxy.Of(id) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// killStarted kills the shim of a pod, and the calls of its binary: all have the keeper's address and the pod's ID on
// their command lines.
func (b *Engine) killStarted(id, cgroup string) error {
	ended, err := runtime.KillMatching(deleteLimit, []string{id, cgroup}, func(line string) bool {
		args := strings.Split(line, "\x00")
		return hasPair(args, "-address", b.address()) && hasPair(args, "-id", id)
	})
	if err == nil && !ended {
		err = fmt.Errorf("the shim %s of pod %s does not end: %w", b.path, id, errdefs.ErrUnavailable)
	}
	return err
}

// usualSocket is where shims have the socket of a pod, unless they are told of another directory. They print it.
func (b *Engine) usualSocket(id string) string {
	return fmt.Sprintf("/run/containerd/s/%x", sha256.Sum256([]byte(filepath.Join(b.address(), namespace, id))))
}

// hasPair tells whether a flag, with one dash or two, has a value.
func hasPair(args []string, flag, value string) bool {
	i := slices.IndexFunc(args, func(arg string) bool { return arg == flag || arg == "-"+flag })
	return i >= 0 && i+1 < len(args) && args[i+1] == value
}
