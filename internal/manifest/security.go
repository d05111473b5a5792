package manifest

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maskedPaths and readonlyPaths are what procMount Default hides and protects (pkg/securitycontext of Kubernetes).
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
		"/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// podSecurity and security are never nil: an absent context is an empty one.
func podSecurity(spec *corev1.PodSpec) *corev1.PodSecurityContext {
	if spec.SecurityContext == nil {
		return &corev1.PodSecurityContext{}
	}
	return spec.SecurityContext
}

func security(c *corev1.Container) *corev1.SecurityContext {
	if c.SecurityContext == nil {
		return &corev1.SecurityContext{}
	}
	return c.SecurityContext
}

// either returns the container's value where it says something, else the pod's.
func either[T any](container, pod *T) *T {
	if container != nil {
		return container
	}
	return pod
}

// containerSecurity is a container's security context with the pod's under it. Without a word about seccomp
// the runtime's default profile holds: this is where Berth is stricter than a kubelet's default.
func (p *Pod) containerSecurity(c *corev1.Container, host *Host, image *cri.Image) *cri.LinuxContainerSecurityContext {
	own, pod := security(c), podSecurity(&p.Spec)
	context := &cri.LinuxContainerSecurityContext{
		NamespaceOptions:         p.namespaces(),
		Privileged:               isTrue(own.Privileged),
		ReadonlyRootfs:           isTrue(own.ReadOnlyRootFilesystem),
		NoNewPrivs:               own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		SelinuxOptions:           selinux(either(own.SELinuxOptions, pod.SELinuxOptions)),
		SupplementalGroups:       p.supplementalGroups(),
		SupplementalGroupsPolicy: groupsPolicy(pod.SupplementalGroupsPolicy),
		Apparmor:                 appArmor(either(own.AppArmorProfile, pod.AppArmorProfile)),
		Seccomp:                  seccomp(either(own.SeccompProfile, pod.SeccompProfile), host.SeccompDir),
	}
	if user := either(own.RunAsUser, pod.RunAsUser); user != nil {
		context.RunAsUser = &cri.Int64Value{Value: *user}
	}
	context.RunAsUsername = p.User
	if group := either(own.RunAsGroup, pod.RunAsGroup); group != nil {
		context.RunAsGroup = &cri.Int64Value{Value: *group}
	}
	if p.NeedsImageUser(c) { // the CRI takes a group beside a user only
		context.RunAsUser, context.RunAsUsername = imageUser(image)
	}
	if own.Capabilities != nil {
		context.Capabilities = &cri.Capability{}
		for _, name := range own.Capabilities.Add {
			context.Capabilities.AddCapabilities = append(context.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range own.Capabilities.Drop {
			context.Capabilities.DropCapabilities = append(context.Capabilities.DropCapabilities, string(name))
		}
	}
	if context.Privileged {
		context.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	} else if own.ProcMount == nil || *own.ProcMount == corev1.DefaultProcMount {
		context.MaskedPaths, context.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	return context
}

// NeedsImageUser says whether a container has a group without a user, so that its user is the one of its image.
func (p *Pod) NeedsImageUser(c *corev1.Container) bool {
	own, pod := security(c), podSecurity(&p.Spec)
	return either(own.RunAsGroup, pod.RunAsGroup) != nil && either(own.RunAsUser, pod.RunAsUser) == nil && p.User == ""
}

// imageUser is the user of an image as a kubelet reads it: its number, else its name, else root.
func imageUser(image *cri.Image) (uid *cri.Int64Value, name string) {
	switch {
	case image.GetUid() != nil:
		return &cri.Int64Value{Value: image.GetUid().GetValue()}, ""
	case image.GetUsername() != "":
		return nil, image.GetUsername()
	}
	return &cri.Int64Value{}, ""
}

// supplementalGroups are those of the pod, the one of its volumes included.
func (p *Pod) supplementalGroups() []int64 {
	pod := podSecurity(&p.Spec)
	groups := append([]int64(nil), pod.SupplementalGroups...)
	if pod.FSGroup != nil {
		groups = append(groups, *pod.FSGroup)
	}
	return groups
}

// FSGroup is the group that owns the pod's volumes but hostPaths; nil where the pod names none.
func (p *Pod) FSGroup() *int64 { return podSecurity(&p.Spec).FSGroup }

// FSGroupOnRootMismatch says whether a volume whose root directory is the group's already is left as it is.
func (p *Pod) FSGroupOnRootMismatch() bool {
	policy := podSecurity(&p.Spec).FSGroupChangePolicy
	return policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch
}

func groupsPolicy(policy *corev1.SupplementalGroupsPolicy) cri.SupplementalGroupsPolicy {
	if policy != nil && *policy == corev1.SupplementalGroupsPolicyStrict {
		return cri.SupplementalGroupsPolicy_Strict
	}
	return cri.SupplementalGroupsPolicy_Merge
}

func seccomp(profile *corev1.SeccompProfile, dir string) *cri.SecurityProfile {
	if profile == nil {
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case corev1.SeccompProfileTypeLocalhost:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(dir, *profile.LocalhostProfile)}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

func appArmor(profile *corev1.AppArmorProfile) *cri.SecurityProfile {
	if profile == nil {
		return nil // the runtime's own choice: its default profile where the host has AppArmor
	}
	switch profile.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeLocalhost:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

func selinux(options *corev1.SELinuxOptions) *cri.SELinuxOption {
	if options == nil {
		return nil
	}
	return &cri.SELinuxOption{User: options.User, Role: options.Role, Type: options.Type, Level: options.Level}
}

// CheckNonRoot says whether a container that must not run as root would, with this image. The image's user is checked
// where the manifest names none.
func (p *Pod) CheckNonRoot(c *corev1.Container, image *cri.Image) error {
	own, pod := security(c), podSecurity(&p.Spec)
	if !isTrue(either(own.RunAsNonRoot, pod.RunAsNonRoot)) {
		return nil
	}
	user := either(own.RunAsUser, pod.RunAsUser)
	switch {
	case user != nil && *user != 0:
		return nil
	case user != nil:
		return fmt.Errorf("container %s: runAsNonRoot is set, and runAsUser is 0", c.Name)
	case image.GetUid() != nil && image.GetUid().GetValue() != 0:
		return nil
	case image.GetUid() == nil && image.GetUsername() != "":
		return fmt.Errorf(
			"container %s: runAsNonRoot is set, and the image's user %q is a name that nobody can check (set runAsUser)",
			c.Name, image.GetUsername())
	}
	return fmt.Errorf("container %s: runAsNonRoot is set, and the image runs as root (set runAsUser)", c.Name)
}
