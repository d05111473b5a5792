package cgroup

import (
	"context"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// LimitSlice is Limit for a slice of systemd, given by its path; systemd makes it where it is not there, and writes
// the limits.
func (h *Hierarchies) LimitSlice(cgroup string, r *specs.LinuxResources) error {
	limits := h.limits(r)
	// On the top level the parent is "-.slice", the root.
	parent := "-.slice"
	if dir := path.Dir(cgroup); dir != "/" {
		parent = path.Base(dir)
	}
	config := &cgroups.Cgroup{Name: path.Base(cgroup), Parent: parent, Resources: limits}
	var manager interface {
		Apply(pid int) error
		Set(*cgroups.Resources) error
	}
	var err error
	if h.Version == V2 {
		manager, err = systemd.NewUnifiedManager(config, h.Dir("", cgroup))
	} else {
		manager, err = systemd.NewLegacyManager(config, nil)
	}
	if err == nil {
		err = manager.Apply(-1) // no process: the slice alone
	}
	if err == nil {
		err = manager.Set(limits)
	}
	if err != nil {
		return fmt.Errorf("limits of slice %s: %w", cgroup, Refused(err))
	}
	return nil
}

// RemoveSlice has systemd stop a slice, given by its path, with all slices below it. It is idempotent. While processes
// are in it, it waits until ctx ends and then says EBUSY.
func (h *Hierarchies) RemoveSlice(ctx context.Context, cgroup string) error {
	if path.Join("/", cgroup) == "/" {
		return fmt.Errorf("remove slice: the root is not removed")
	}
	name := path.Base(cgroup)
	asked := false
	for wait := time.Millisecond; h.Exists(cgroup); wait = min(2*wait, 50*time.Millisecond) {
		pids, err := h.Processes(cgroup)
		if err != nil {
			return err
		}
		if len(pids) == 0 && !asked {
			if err := stopUnit(ctx, name); err != nil {
				return fmt.Errorf("remove slice %s: %w", name, err)
			}
			asked = true
		}
		select {
		case <-ctx.Done():
			return &os.PathError{Op: "remove slice", Path: cgroup, Err: unix.EBUSY}
		case <-time.After(wait):
		}
	}
	return nil
}

// RemoveEmptySlice is RemoveSlice for one that others may have slices or scopes in, with or without processes:
// EBUSY then, at once.
func (h *Hierarchies) RemoveEmptySlice(ctx context.Context, cgroup string) error {
	if err := h.alone(cgroup); err != nil {
		return err
	}
	return h.RemoveSlice(ctx, cgroup)
}

// startUnit has systemd start a unit, and waits until it has.
func startUnit(ctx context.Context, name string) error {
	conn, err := dbus.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	if _, err := conn.StartUnitContext(ctx, name, "replace", done); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("start %s: systemd says %q", name, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start %s: %w", name, ctx.Err())
	}
}

// stopUnit asks systemd to stop a unit, and does not wait until it has.
func stopUnit(ctx context.Context, name string) error {
	conn, err := dbus.NewWithContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.StopUnitContext(ctx, name, "replace", nil)
	return err
}
