package ocispec

import (
	"testing"

	"github.com/opencontainers/selinux/go-selinux"

	"berth/internal/model"
)

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
