package ocispec

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"berth/internal/apparmor"
	"berth/internal/hostpath"
	"berth/internal/model"
)

// appArmor sets the profile. Its errors write "apparmor" in lower case, as those of containerd and runc do: the kubelet
// shows them to users, and test/e2e_node of Kubernetes looks for that word.
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
			return invalid("apparmor: type Localhost without a profile's name")
		}
		if !b.host.AppArmor && apparmor.OutOfReach() {
			return unable("apparmor profile %q: %s is not there: mount securityfs at /sys/kernel/security", name, apparmor.Files)
		}
		if !b.host.AppArmor {
			return unable("apparmor profile %q: this host has no AppArmor", name)
		}
		loaded, err := apparmor.Loaded(name)
		if err != nil {
			return fmt.Errorf("apparmor: %w", err)
		}
		if !loaded {
			return unable("apparmor profile %q is not loaded", name)
		}
		b.spec.Process.ApparmorProfile = name
	default:
		return invalid("apparmor: type %q is unknown", profile.Type)
	}
	return nil
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
	for name, value := range parts(s) {
		options = append(options, name+":"+value)
	}
	process, mount, err := label.InitLabels(options)
	if err != nil {
		return Label{}, invalid("SELinux: %v", err)
	}
	l := Label{Process: process, Mount: mount}
	if err := l.check(); err != nil {
		l.Release()
		return Label{}, err
	}
	return l, nil
}

// parts are what options name of a label, by the names of go-selinux.
func parts(s *model.SELinux) map[string]string {
	if s == nil {
		return nil
	}
	named := map[string]string{"user": s.User, "role": s.Role, "type": s.Type, "level": s.Level}
	maps.DeleteFunc(named, func(_, value string) bool { return value == "" })
	return named
}

// check: the policy of this host has the label.
func (l Label) check() error {
	for _, context := range []string{l.Process, l.Mount} {
		if context == "" {
			continue
		}
		if err := selinux.SecurityCheckContext(context); errors.Is(err, unix.EINVAL) {
			return invalid("SELinux: this host's policy has no label %s", context)
		} else if err != nil {
			return fmt.Errorf("SELinux: label %s: %w", context, err)
		}
	}
	return nil
}

// Of is the label of a container with options of its own in a pod with this one. What it does not name
// it has from the pod; its files have the level of its processes.
func (l Label) Of(asked *model.SELinux) (Label, error) {
	named := parts(asked)
	if l.Process == "" || len(named) == 0 {
		return l, nil
	}
	process, err := selinux.NewContext(l.Process)
	if err != nil {
		return Label{}, invalid("SELinux: %v", err)
	}
	mount, err := selinux.NewContext(l.Mount)
	if err != nil {
		return Label{}, invalid("SELinux: %v", err)
	}
	for name, value := range named {
		process[name] = value
		if name == "user" || name == "level" {
			mount[name] = value
		}
	}
	own := Label{Process: process.Get(), Mount: mount.Get()}
	return own, own.check()
}

// MountOptions adds the label of the pod's files to the options of a file system.
func (l Label) MountOptions(options string) string { return label.FormatMountLabel(options, l.Mount) }

// Apply gives a file, or a directory with all that is in it, the label of the pod's files; without its categories
// where pods share it.
func (l Label) Apply(ctx context.Context, path string, shared bool) error {
	if l.Mount == "" {
		return nil
	}
	if err := hostpath.Relabel(ctx, path, l.Mount, shared); err != nil {
		return fmt.Errorf("SELinux label of %s: %w", path, err)
	}
	return nil
}

// Reserve marks the category of a label of a recorded pod as taken, after a start of the daemon. Pods that chose
// the same level share it.
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

// selinux: a privileged container is not confined.
func (b *builder) selinux() error {
	asked := b.security.SELinux
	if !b.host.SELinux {
		// Manifests for mixed clusters name SELinux options everywhere, so a host without SELinux cannot refuse them.
		if len(parts(asked)) > 0 {
			b.warn("SELinux options are without effect: this host has no SELinux")
		}
		return nil
	}
	if b.security.Privileged {
		return nil
	}
	b.spec.Process.SelinuxLabel, b.spec.Linux.MountLabel = b.in.Label.Process, b.in.Label.Mount
	return nil
}
