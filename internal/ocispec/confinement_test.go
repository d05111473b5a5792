package ocispec

import (
	"path/filepath"
	"testing"

	"github.com/opencontainers/selinux/go-selinux"

	"berth/internal/model"
)

// TestAppArmorIsOutOfReachWithoutItsFiles: the kernel has it, and securityfs is not mounted, as in a container. Seen to
// fail where only the kernel was asked, and where only the files were looked for.
func TestAppArmorIsOutOfReachWithoutItsFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		enabled            string // of the kernel's module; empty: there is none
		files              bool   // securityfs has them
		usable, outOfReach bool
	}{
		"a node with AppArmor":       {"Y\n", true, true, false},
		"a node in a container":      {"Y\n", false, false, true},
		"AppArmor is off":            {"N\n", true, false, false},
		"AppArmor is off, no files":  {"N\n", false, false, false},
		"a kernel without it":        {"", false, false, false},
		"a kernel without it, files": {"", true, false, false},
	} {
		sysfs := t.TempDir()
		if tc.enabled != "" {
			write(t, filepath.Join(sysfs, "module/apparmor/parameters/enabled"), tc.enabled)
		}
		if tc.files {
			write(t, filepath.Join(sysfs, "kernel/security/apparmor/profiles"), "")
		}
		if usable, out := appArmorUsable(sysfs), appArmorOutOfReach(sysfs); usable != tc.usable || out != tc.outOfReach {
			t.Errorf("%s: usable %v, out of reach %v", name, usable, out)
		}
	}
}

// TestTheDefaultProfileIsLeftOutWhereAppArmorIsNotUsable, as with containerd. A profile that is named is refused there:
// TestBadInputIsRefusedByName. Seen to fail where the profile was set without a look at the node.
func TestTheDefaultProfileIsLeftOutWhereAppArmorIsNotUsable(t *testing.T) {
	for name, tc := range map[string]struct {
		usable     bool
		privileged bool
		profile    *model.SecurityProfile
		want       string
	}{
		"none is named":          {true, false, nil, "berth-default"},
		"the default is named":   {true, false, &model.SecurityProfile{Type: model.ProfileRuntimeDefault}, "berth-default"},
		"a privileged container": {true, true, nil, ""},
		"not usable":             {false, false, nil, ""},
		"named, and not usable":  {false, false, &model.SecurityProfile{Type: model.ProfileRuntimeDefault}, ""},
		"unconfined":             {true, false, &model.SecurityProfile{Type: model.ProfileUnconfined}, ""},
	} {
		in := input(t)
		in.Host.AppArmor, in.Handler.AppArmorDefault = tc.usable, "berth-default"
		in.Container.Security.AppArmor, in.Container.Security.Privileged = tc.profile, tc.privileged
		in.Sandbox.Security.Privileged = tc.privileged
		if got := build(t, in).Spec.Process.ApparmorProfile; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestOptionsOfSELinuxHaveNoEffectWhereItIsOff, as with containerd.
func TestOptionsOfSELinuxHaveNoEffectWhereItIsOff(t *testing.T) {
	if selinux.GetEnabled() {
		t.Skip("this node has SELinux on")
	}
	asked := &model.SELinux{Type: "no_such_t", Level: "s0:c1,c2"}
	pod, err := NewLabel(asked)
	if err != nil || pod != (Label{}) {
		t.Errorf("a pod: %+v, %v", pod, err)
	}
	if own, err := pod.Of(asked); err != nil || own != (Label{}) {
		t.Errorf("a container: %+v, %v", own, err)
	}
}
