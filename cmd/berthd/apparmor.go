package main

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/contrib/apparmor"

	"berth/internal/apparmor"
)

// defaultAppArmor is the profile that stands for RuntimeDefault where the host has AppArmor.
const defaultAppArmor = "berth-default"

// appArmorInfo is what a verbose Status tells of AppArmor.
type appArmorInfo struct {
	DefaultProfile string `json:"default_profile"`  // empty: containers that name no profile have none
	Reason         string `json:"reason,omitempty"` // why there is no default profile though the kernel has AppArmor
}

// loadAppArmor loads the default profile, if this host can have one, and says why it has none. A node without the
// program that loads profiles runs containers all the same, as with containerd.
func (d *parts) loadAppArmor(ctx context.Context) (*appArmorInfo, error) {
	if apparmor.OutOfReach() {
		d.log.Warn("the kernel has AppArmor, but securityfs is not mounted; containers get no profile of their own")
		return &appArmorInfo{Reason: "securityfs is not mounted at /sys/kernel/security"}, nil
	}
	loaded, err := d.appArmor.Load(ctx)
	if errors.Is(err, apparmor.ErrNoParser) {
		return &appArmorInfo{Reason: apparmor.ErrNoParser.Error()}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load the default AppArmor profile: %w", err)
	}
	if !loaded {
		return &appArmorInfo{}, nil
	}
	return &appArmorInfo{DefaultProfile: defaultAppArmor}, nil
}

// openAppArmor makes what loads the default profile.
func (d *parts) openAppArmor() {
	text := func() (string, error) { return containerd.DumpDefaultProfile(defaultAppArmor) }
	d.appArmor = apparmor.NewDefault(defaultAppArmor, text, d.log)
}
