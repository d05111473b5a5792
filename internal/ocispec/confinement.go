package ocispec

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"

	"berth/internal/model"
)

// LoadAppArmor loads the default AppArmor profile into the kernel under a name, for Handler.AppArmorDefault. It runs
// apparmor_parser where the profile is not loaded yet: call it when the daemon starts. On a host without AppArmor it does
// nothing and says false.
func LoadAppArmor(name string) (bool, error) {
	if !appArmorEnabled() {
		return false, nil
	}
	if err := apparmor.LoadDefaultProfile(name); err != nil {
		return false, fmt.Errorf("AppArmor profile %s: %w", name, err)
	}
	return true, nil
}

func (b *builder) appArmor() error {
	profile := b.security.AppArmor
	if profile == nil {
		profile = b.in.Handler.AppArmor
	}
	if profile == nil {
		profile = &model.SecurityProfile{Type: model.ProfileRuntimeDefault}
	}
	switch profile.Type {
	case model.ProfileUnconfined:
	case model.ProfileRuntimeDefault, "":
		// A host without AppArmor has no default to miss.
		if b.host.AppArmor && !b.security.Privileged {
			b.spec.Process.ApparmorProfile = b.in.Handler.AppArmorDefault
		}
	case model.ProfileLocalhost:
		name := profile.LocalhostRef
		if name == "" {
			return invalid("AppArmor: type Localhost without a profile's name")
		}
		if !b.host.AppArmor {
			return unable("AppArmor: profile %q: this host has no AppArmor", name)
		}
		loaded, err := appArmorLoaded(name)
		if err != nil {
			return fmt.Errorf("AppArmor: %w", err)
		}
		if !loaded {
			return unable("AppArmor: profile %q is not loaded", name)
		}
		b.spec.Process.ApparmorProfile = name
	default:
		return invalid("AppArmor: type %q is unknown", profile.Type)
	}
	return nil
}

func appArmorLoaded(name string) (bool, error) {
	f, err := os.Open("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() { // name (mode)
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && strings.HasPrefix(rest, " (") {
			return true, nil
		}
	}
	return false, lines.Err()
}

// Label is the SELinux label of a pod's processes and of its files. Empty: none.
type Label struct {
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
}

// NewLabel makes a pod's label from what its security context asks for, with a category of the pod's own where it names
// no level. Release it with Release when the pod is removed. Without SELinux on the host it is empty.
func NewLabel(s *model.SELinux) (Label, error) {
	if !selinux.GetEnabled() {
		return Label{}, nil
	}
	var options []string
	if s != nil {
		for _, part := range []struct{ name, value string }{
			{"user", s.User}, {"role", s.Role}, {"type", s.Type}, {"level", s.Level},
		} {
			if part.value != "" {
				options = append(options, part.name+":"+part.value)
			}
		}
	}
	process, mount, err := label.InitLabels(options)
	if err != nil {
		return Label{}, invalid("SELinux: %v", err)
	}
	return Label{Process: process, Mount: mount}, nil
}

// Reserve marks the category of a label of a recorded pod as taken, after a start of the daemon. Pods that chose the same
// level share it.
func (l Label) Reserve() error {
	if l.Process == "" {
		return nil
	}
	if err := selinux.ReserveLabelV2(l.Process); err != nil && !errors.Is(err, selinux.ErrMCSAlreadyExists) {
		return fmt.Errorf("SELinux: label %s: %w", l.Process, err)
	}
	return nil
}

// Release gives the category of a label back.
func (l Label) Release() {
	if l.Process != "" {
		selinux.ReleaseLabel(l.Process)
	}
}

// selinux: a container's own options beat the pod's label; a privileged container is not confined.
func (b *builder) selinux() error {
	asked := b.security.SELinux
	if !b.host.SELinux {
		// Manifests for mixed clusters name SELinux options everywhere, so a host without SELinux cannot refuse them.
		if asked != nil && *asked != (model.SELinux{}) {
			b.warn("SELinux options are without effect: this host has no SELinux")
		}
		return nil
	}
	if b.security.Privileged {
		return nil
	}
	own := b.in.Label
	if asked != nil && *asked != (model.SELinux{}) && own.Process != "" {
		context, err := selinux.NewContext(own.Process)
		if err != nil {
			return invalid("SELinux: %v", err)
		}
		for _, part := range []struct{ name, value string }{
			{"user", asked.User}, {"role", asked.Role}, {"type", asked.Type}, {"level", asked.Level},
		} {
			if part.value != "" {
				context[part.name] = part.value
			}
		}
		own.Process = context.Get()
		if err := label.Validate(own.Process); err != nil {
			return invalid("SELinux: %v", err)
		}
	}
	b.spec.Process.SelinuxLabel, b.spec.Linux.MountLabel = own.Process, own.Mount
	return nil
}
