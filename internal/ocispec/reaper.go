package ocispec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/annotation"
	"berth/internal/model"
)

// ReaperInput is what the spec of a pod's init is made of: the process that holds the pod's PID namespace and reaps.
type ReaperInput struct {
	SandboxID   string
	Rootfs      string // a directory of its own, empty
	Namespaces  Namespaces
	User        *model.UserNamespace // the pod's own; nil: it has the node's
	CgroupsPath string
	Label       Label
	Host        *Host // nil: Detect's
	// Sandbox is the pod, if the reaper is its sandbox container; nil: it is not. The runtime is told those of the pod's
	// annotations that Annotations let through, as with Handler.Annotations.
	Sandbox     *model.SandboxConfig
	Annotations []string
}

// reaperUser is the user ID of nobody in the images of Kubernetes. The reaper needs none of any user's rights.
const reaperUser = 65535

// reaperID is reaperUser, or the largest ID below it that the user namespace has.
func reaperID(mappings []model.IDMapping) (id uint32) {
	for _, m := range mappings {
		if m.ContainerID <= reaperUser {
			id = max(id, min(reaperUser, m.ContainerID+m.Length-1))
		}
	}
	return id
}

// Reaper is the spec of a pod's init, for keeper.RunRequest.Reaper: a new PID namespace, nothing to write,
// no capability and no device. Its children are the pod's orphans, which it only waits for, so it needs no right
// to signal them.
func Reaper(in ReaperInput) (*specs.Spec, error) {
	if in.Host == nil {
		host, err := Detect()
		if err != nil {
			return nil, err
		}
		in.Host = host
	}
	user := specs.User{UID: reaperUser, GID: reaperUser}
	if in.User != nil {
		user = specs.User{UID: reaperID(in.User.UIDs), GID: reaperID(in.User.GIDs)}
	}
	score := max(-998, in.Host.MinOOMScoreAdj) // it is nearly nothing, and with it all of the pod's containers end
	spec := &specs.Spec{
		Version: specVersion,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: true},
		Process: &specs.Process{
			User:            user,
			Args:            []string{"reaper"},
			Env:             []string{defaultPath},
			Cwd:             "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     &score,
			SelinuxLabel:    in.Label.Process,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: in.CgroupsPath,
			MountLabel:  in.Label.Mount,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace}, {Type: specs.PIDNamespace},
			},
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: allAccess}},
			},
			MaskedPaths:   defaultMasked,
			ReadonlyPaths: defaultReadonly,
		},
		Annotations: map[string]string{},
	}
	for _, n := range []struct {
		kind specs.LinuxNamespaceType
		path string
	}{
		{specs.NetworkNamespace, in.Namespaces.Network}, {specs.IPCNamespace, in.Namespaces.IPC},
		{specs.UTSNamespace, in.Namespaces.UTS}, {specs.UserNamespace, in.Namespaces.User},
	} {
		if n.path != "" {
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: n.kind, Path: n.path})
		}
	}
	if pod := in.Sandbox; pod != nil {
		spec.Hostname = pod.Hostname
		for key, value := range pod.Annotations {
			if passed, _ := annotation.Passed(in.Annotations, key); passed {
				spec.Annotations[key] = value
			}
		}
	}
	maps.Copy(spec.Annotations, SandboxAnnotations(in.SandboxID, in.Sandbox)) // which a handler's list cannot change
	return spec, nil
}

// SandboxAnnotations are what the runtime says of a pod in the specification of its sandbox. Without a configuration,
// that is its ID.
func SandboxAnnotations(id string, pod *model.SandboxConfig) map[string]string {
	out := map[string]string{annotationType: "sandbox", annotationSandboxID: id, annotationOwnSandbox: id}
	if pod == nil {
		return out
	}
	out[annotationSandboxName] = pod.Metadata.Name
	out[annotationSandboxNamespace] = pod.Metadata.Namespace
	out[annotationSandboxUID] = pod.Metadata.UID
	out[annotationSandboxLog] = pod.LogDirectory
	if r := pod.Resources; r != nil { // Kata Containers makes virtual machines of this size
		out[annotationSandboxPeriod] = strconv.FormatInt(r.CPUPeriod, 10)
		out[annotationSandboxQuota] = strconv.FormatInt(r.CPUQuota, 10)
		out[annotationSandboxShares] = strconv.FormatInt(r.CPUShares, 10)
		out[annotationSandboxMemory] = strconv.FormatInt(r.MemoryLimit, 10)
	}
	return out
}

// RuntimeAnnotation tells whether readers take an annotation with this key in a specification for the runtime's word,
// as those of containerd, CRI-O and Berth are, so that what a client calls so must not stand there.
func RuntimeAnnotation(key string) bool {
	return slices.ContainsFunc([]string{"io.kubernetes.cri.", "io.kubernetes.cri-o.", "io.container.", "io.berth."},
		func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
