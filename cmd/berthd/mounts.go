package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/mountns"
)

func (d *parts) keeperDir() string { return filepath.Join(d.cfg.State, "keeper") }

// enterMounts sees to it that berthd is in the mount namespace that the configuration wants, or in that in which the
// mounts of pods are already. It may execute the program again.
func (d *parts) enterMounts(ctx context.Context) error {
	pin, want := mountns.Pin(d.keeperDir()), d.cfg.MountNamespace
	if err := mountns.Enter(ctx, pin); err != nil {
		return fmt.Errorf("mount_namespace: %w", err)
	}
	switch inside := mountns.Node() != nil; {
	case inside && want == config.MountsNode:
		d.log.Warn("mounts of pods stay in a mount namespace of Berth's own until the next reboot", "pin", pin)
		return nil
	case inside && !mountns.Own(d.cfg.Root):
		d.log.Warn("root file systems of pods are mounted in the node's mount namespace, too, until the next reboot: "+
			"root was another directory when the mount namespace of Berth's own was made", "root", d.cfg.Root, "pin", pin)
		return nil
	case inside || want == config.MountsNode:
		return nil
	}
	if made, err := d.makeMounts(pin); err != nil || !made {
		return err
	}
	if err := mountns.Enter(ctx, pin); err != nil {
		return fmt.Errorf("mount_namespace: %w", err)
	}
	return fmt.Errorf("mount_namespace: the mount namespace %s is gone", pin)
}

// takeSockets keeps what systemd has passed from the programs that berthd starts. enterMounts comes before it, since it
// may execute berthd again, which needs them.
func (d *parts) takeSockets(context.Context) error {
	cri.TakePassed()
	return nil
}

// makeMounts makes the namespace, unless the node has pods whose mounts are in its own, or cannot have one.
func (d *parts) makeMounts(pin string) (made bool, err error) {
	pods := filepath.Join(d.cfg.State, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if len(entries) > 0 {
		d.log.Warn("mounts of pods are in the node's mount namespace until a start of berthd without pods",
			"pods", len(entries))
		return false, nil
	}
	if err := mountns.Make(pin, []string{d.cfg.Root, pods}); err != nil {
		return false, fmt.Errorf("mount_namespace: %w", err)
	}
	return true, nil
}

// moveKeeper brings the keeper into berthd's mount namespace: it has started before the namespace was there.
func (d *parts) moveKeeper(ctx context.Context) error {
	if mountns.Node() == nil {
		return nil
	}
	info, err := d.keeper.Info(ctx)
	if err != nil {
		return err
	}
	if same, err := mountns.Same(info.PID); err != nil || same {
		return err
	}
	d.log.Info("the keeper is executed again, in the mount namespace of Berth's own", "keeper_pid", info.PID)
	if err := d.keeper.Upgrade(ctx); err != nil {
		return fmt.Errorf("bring the keeper into berthd's mount namespace: %w", err)
	}
	if info, err = d.keeper.Info(ctx); err != nil {
		return err
	}
	if same, err := mountns.Same(info.PID); err != nil || !same {
		return errors.Join(err, fmt.Errorf("the keeper (process %d) is not in berthd's mount namespace", info.PID))
	}
	return nil
}
