package ocispec

import (
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/annotation"
	"berth/internal/cgroup"
	"berth/internal/hostpath/inroot"
	"berth/internal/model"
)

// specVersion is what a spec says it is. Later versions only add fields, which runtimes read whatever this says;
// but crun before 1.9 refuses a number that does not begin with 1.0.
const specVersion = "1.0.2"

// Build makes the spec of a container. Errors name the field and, where a file is to blame, the file:
// ErrInvalidArgument for what no node could do, ErrFailedPrecondition for what this one cannot. ctx bounds what waits
// for file systems.
func Build(ctx context.Context, in Input) (*Output, error) {
	if in.Sandbox == nil || in.Container == nil {
		return nil, fmt.Errorf("spec: no configuration: %w", errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(in.Rootfs) {
		return nil, fmt.Errorf("spec: root file system %q is not absolute: %w", in.Rootfs, errdefs.ErrInvalidArgument)
	}
	if in.Host == nil {
		host, err := Detect()
		if err != nil {
			return nil, err
		}
		in.Host = host
	}
	b := &builder{ctx: ctx, in: in, config: in.Container, security: &in.Container.Security, host: in.Host}
	b.spec = &specs.Spec{
		Version: specVersion,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: b.security.ReadonlyRootfs},
		Process: &specs.Process{},
		Linux:   &specs.Linux{CgroupsPath: in.CgroupsPath},
	}
	// Mounts and devices look at host paths, which may hang; the user database is on the container's own file system.
	for _, step := range []func() error{
		b.edit,
		b.namespaces,
		b.process,
		func() error { return b.waiting("user", b.user) },
		b.capabilities,
		b.seccomp,
		b.appArmor,
		b.selinux,
		b.resources,
		b.netPriority,
		func() error { return b.waiting("mounts", b.mounts) },
		func() error { return b.waiting("devices", b.devices) },
		b.paths,
		b.annotations,
		func() error { return b.waiting("CDI devices", b.cdi) },
		b.deviceOwners,
		func() error { return b.waiting("devices", b.bindDevices) },
		b.hooks,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &Output{Spec: b.spec, User: b.who, StopSignal: b.stopSignal(), Warnings: b.warnings}, nil
}

// builder is the state of one Build.
type builder struct {
	ctx      context.Context
	in       Input
	config   *model.ContainerConfig
	security *model.ContainerSecurity
	host     *Host

	// brought are annotations of Input.Edits.
	brought map[string]string
	// sources are the paths that devices have on the host, by those in the container.
	sources map[string]string
	// resolver has a limit for the sub paths of all images; nil: none was looked for yet.
	resolver *inroot.Resolver

	spec     *specs.Spec
	who      model.User
	warnings []string
}

// waiting runs a step that may hang in a file system. When ctx ends first, the step goes on alone, with a copy
// of nothing that anybody else reads, until its file system answers.
func (b *builder) waiting(what string, step func() error) error { return waiting(b.ctx, what, step) }

func waiting(ctx context.Context, what string, step func() error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	done := make(chan error, 1)
	go func() { done <- step() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: a file system does not answer: %w", what, ctx.Err())
	}
}

func (b *builder) warn(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

func unable(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}

func (b *builder) namespaces() error {
	join := func(kind specs.LinuxNamespaceType, where string) {
		if where == "" {
			return
		}
		if where == Fresh {
			where = ""
		}
		b.spec.Linux.Namespaces = append(b.spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: where})
	}
	n, options := b.in.Namespaces, b.security.Namespaces
	join(specs.MountNamespace, Fresh)
	join(specs.NetworkNamespace, n.Network)
	join(specs.IPCNamespace, n.IPC)
	join(specs.UTSNamespace, n.UTS)
	if n.UTS == Fresh {
		hostname, err := b.hostname()
		if err != nil {
			return err
		}
		b.spec.Hostname = hostname
	}
	switch options.PID {
	case model.NamespaceContainer:
		join(specs.PIDNamespace, Fresh)
	case model.NamespacePod, model.NamespaceTarget, "":
		if b.in.Handler.InSandbox && options.PID != model.NamespaceTarget {
			break // none: the containers have that of the sandbox, whose first process is the pod's init
		}
		if n.PID == "" {
			return invalid("namespaces: mode %q of PID needs the path of a namespace", options.PID)
		}
		join(specs.PIDNamespace, n.PID)
	case model.NamespaceNode:
	default:
		return invalid("namespaces: PID mode %q is unknown", options.PID)
	}
	// On v2 a container sees its own cgroup as the root. v1 tools in images look for the host's paths.
	if b.host.Cgroups.Version == cgroup.V2 && !b.security.Privileged {
		join(specs.CgroupNamespace, Fresh)
	}
	user := b.userNamespace()
	if user == nil {
		return nil
	}
	if b.security.Privileged {
		return invalid("namespaces: a privileged container cannot have a user namespace")
	}
	var err error
	if b.spec.Linux.UIDMappings, err = idMappings("namespaces: user namespace: UIDs", user.UIDs); err != nil {
		return err
	}
	if b.spec.Linux.GIDMappings, err = idMappings("namespaces: user namespace: GIDs", user.GIDs); err != nil {
		return err
	}
	if n.User == "" {
		n.User = Fresh
	}
	join(specs.UserNamespace, n.User)
	return nil
}

// userNamespace is the user namespace that the container asks for, itself or through its pod; nil: the node's.
func (b *builder) userNamespace() *model.UserNamespace {
	return UserNamespace(b.security.Namespaces.User, b.in.Sandbox.Security.Namespaces.User)
}

// UserNamespace is the one that a container has by its own settings and its pod's; nil: the node's.
func UserNamespace(container, sandbox *model.UserNamespace) *model.UserNamespace {
	for _, user := range []*model.UserNamespace{container, sandbox} {
		if user != nil {
			if user.Mode == model.NamespaceNode {
				return nil
			}
			return user
		}
	}
	return nil
}

// maxMappings is how many lines the kernel takes in a uid_map (Linux 4.15).
const maxMappings = 340

func idMappings(what string, mappings []model.IDMapping) ([]specs.LinuxIDMapping, error) {
	if len(mappings) == 0 || len(mappings) > maxMappings {
		return nil, invalid("%s: %d mappings, where 1 to %d are possible", what, len(mappings), maxMappings)
	}
	out := make([]specs.LinuxIDMapping, len(mappings))
	for i, m := range mappings {
		const end = 1<<32 - 1 // the last ID means "no ID"
		if m.Length == 0 || uint64(m.HostID)+uint64(m.Length) > end || uint64(m.ContainerID)+uint64(m.Length) > end {
			return nil, invalid("%s: mapping %d (%d to %d, %d IDs) is empty or beyond 32 bits", what, i, m.ContainerID,
				m.HostID, m.Length)
		}
		for j, other := range mappings[:i] {
			if overlap(m.ContainerID, other.ContainerID, m.Length, other.Length) ||
				overlap(m.HostID, other.HostID, m.Length, other.Length) {
				return nil, invalid("%s: mappings %d and %d overlap", what, j, i)
			}
		}
		out[i] = specs.LinuxIDMapping{ContainerID: m.ContainerID, HostID: m.HostID, Size: m.Length}
	}
	return out, nil
}

// CheckUserNamespace refuses mappings that the kernel would refuse, or that leave a container without a root.
func CheckUserNamespace(user *model.UserNamespace) error {
	for _, ids := range []struct {
		name     string
		mappings []model.IDMapping
	}{{"uids", user.UIDs}, {"gids", user.GIDs}} {
		if _, err := idMappings(ids.name, ids.mappings); err != nil {
			return err
		}
		if !mapped(ids.mappings, 0) {
			return invalid("%s: ID 0 of the container is not mapped", ids.name)
		}
	}
	return nil
}

func overlap(a, b, lengthA, lengthB uint32) bool {
	return uint64(a) < uint64(b)+uint64(lengthB) && uint64(b) < uint64(a)+uint64(lengthA)
}

// Keys of the annotations that every spec has. The first group is what tools that read containerd's specs look for.
const (
	annotationType             = "io.kubernetes.cri.container-type"
	annotationSandboxID        = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName      = "io.kubernetes.cri.sandbox-name"
	annotationSandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID       = "io.kubernetes.cri.sandbox-uid"
	annotationSandboxLog       = "io.kubernetes.cri.sandbox-log-directory"
	annotationSandboxPeriod    = "io.kubernetes.cri.sandbox-cpu-period"
	annotationSandboxQuota     = "io.kubernetes.cri.sandbox-cpu-quota"
	annotationSandboxShares    = "io.kubernetes.cri.sandbox-cpu-shares"
	annotationSandboxMemory    = "io.kubernetes.cri.sandbox-memory"
	annotationContainerName    = "io.kubernetes.cri.container-name"
	annotationImageName        = "io.kubernetes.cri.image-name"

	annotationGracePeriod = "io.kubernetes.pod.terminationGracePeriod" // a kubelet's, of the pod, in seconds

	annotationOwnContainer = "io.berth.container-id"
	annotationOwnSandbox   = "io.berth.sandbox-id"
)

func (b *builder) annotations() error {
	out := map[string]string{}
	for _, given := range []map[string]string{b.in.Sandbox.Annotations, b.config.Annotations} {
		for _, key := range slices.Sorted(maps.Keys(given)) {
			passed, reason := annotation.Passed(b.in.Handler.Annotations, key)
			if passed {
				out[key] = given[key]
			} else if reason != "" {
				b.warn("annotation %s is not passed on: %s", key, reason)
			}
		}
	}
	for key, value := range b.brought {
		if err := annotation.CheckBrought(key); err != nil {
			return unable("device plugin: %v", err)
		}
		out[key] = value
	}
	meta := b.in.Sandbox.Metadata
	out[annotationType] = "container"
	out[annotationSandboxID] = b.in.SandboxID
	out[annotationSandboxName] = meta.Name
	out[annotationSandboxNamespace] = meta.Namespace
	out[annotationSandboxUID] = meta.UID
	out[annotationContainerName] = b.config.Metadata.Name
	out[annotationImageName] = b.in.ImageName
	out[annotationOwnContainer] = b.in.ContainerID
	out[annotationOwnSandbox] = b.in.SandboxID
	if b.in.Scope != nil {
		maps.Copy(out, b.in.Scope.annotations(b.config.Annotations))
	}
	b.spec.Annotations = out
	return nil
}

// maxStop bounds how long systemd waits for the end of a container, in seconds.
const maxStop = 1 << 31

// annotations are those that runtimes pass on to systemd, as properties of the container's scope. When the node shuts
// down, systemd stops a kubelet's slices with the scopes in them: without an order, the keeper could go first. The
// scope has no default dependencies, as libcontainer makes it, since systemd would then stop it as soon as a shutdown
// begins, also in a slice that stays until `berth apply` has stopped its pods. given are the annotations of the
// client, of which that of a kubelet with the pod's grace period counts.
func (s *Scope) annotations(given map[string]string) map[string]string {
	const property = "org.systemd.property."
	out := map[string]string{}
	if len(s.After) > 0 {
		quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
		var names []string
		for _, unit := range s.After {
			names = append(names, "'"+quote.Replace(unit)+"'")
		}
		out[property+"After"] = "[" + strings.Join(names, ", ") + "]"
	}
	if seconds, err := strconv.ParseInt(given[annotationGracePeriod], 10, 64); err == nil && seconds >= 0 {
		out[property+"TimeoutStopUSec"] = fmt.Sprintf("uint64 %d", min(max(seconds, 1), maxStop)*1_000_000)
	}
	return out
}

// paths are the masked and read-only ones. A client that names none gets the defaults, so that nobody has an open /proc
// by silence; in a user namespace none means none, since that is how an unmasked /proc is asked for.
func (b *builder) paths() error {
	if b.security.Privileged {
		return nil
	}
	b.spec.Linux.MaskedPaths, b.spec.Linux.ReadonlyPaths = b.security.MaskedPaths, b.security.ReadonlyPaths
	if len(b.security.MaskedPaths) == 0 && len(b.security.ReadonlyPaths) == 0 && b.userNamespace() == nil {
		b.spec.Linux.MaskedPaths, b.spec.Linux.ReadonlyPaths = defaultMasked, defaultReadonly
	}
	for _, p := range append(b.spec.Linux.MaskedPaths[:len(b.spec.Linux.MaskedPaths):len(b.spec.Linux.MaskedPaths)],
		b.spec.Linux.ReadonlyPaths...) {
		if !path.IsAbs(p) {
			return invalid("masked and read-only paths: %q is not absolute", p)
		}
	}
	return nil
}

// As the kubelet sends them for procMount Default.
var (
	defaultMasked = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware"}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)
