package ocispec

import (
	"syscall"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

// Input is all that a container's spec is made of. Build only reads it.
type Input struct {
	SandboxID   string
	ContainerID string
	Sandbox     *model.SandboxConfig
	Container   *model.ContainerConfig
	Image       imagespec.ImageConfig
	ImageName   string // for the spec's annotations

	Rootfs string // where the root file system is mounted; users are looked up in it
	// RemoteLayers: the root file system may not answer, so it is only looked at by a child (package hostpath).
	RemoteLayers bool
	Namespaces   Namespaces
	// CgroupsPath goes into the spec as it is: absolute, or slice:prefix:name for systemd.
	CgroupsPath string
	// Scope is what the container's scope unit of systemd gets; nil: systemd does not make the container's cgroup.
	Scope *Scope
	Files PodFiles
	// ImageMounts are the images of Mount.Image mounts, by container path as in the configuration.
	ImageMounts map[string]ImageMount
	// Edits are what others than the client add, such as device plugins.
	Edits []model.Edits
	// Label is the container's SELinux label; empty where the host has no SELinux.
	Label Label

	Handler Handler
	Host    *Host // nil: Detect's
}

// Scope is what the scope unit of a container gets beside its limits.
type Scope struct {
	// After are the units that systemd stops after the container, when the node shuts down.
	After []string
}

// Fresh in place of a namespace's path asks for a new namespace of the container's own.
const Fresh = "new"

// Namespaces are the namespaces that a container joins, by path, or Fresh. An empty Network, IPC or UTS is the node's.
// PID follows NamespaceOptions.PID of the container: the path is for the modes pod and target, and not read in
// the others. User is read where the container asks for a user namespace; empty is a new one with the asked mappings.
type Namespaces struct {
	Network, IPC, UTS, PID, User string
}

// PodFiles are the pod's files on the host, which each of its containers sees. An empty path leaves the container
// what its image has; an empty Shm gives it a /dev/shm of its own.
type PodFiles struct {
	Hosts, ResolvConf, Hostname string
	Shm                         string // a directory: a mounted tmpfs, or the node's /dev/shm
}

// Handler is what a runtime handler of the node's configuration says of its containers.
type Handler struct {
	// PrivilegedWithoutHostDevices gives a privileged container the devices that it names, not all of the host's.
	PrivilegedWithoutHostDevices bool
	// PrivilegedAllDevicesAllowed lets such a container use devices that it makes itself.
	PrivilegedAllDevicesAllowed bool
	// Capabilities is the set that a container starts from; nil: DefaultCapabilities.
	Capabilities []string
	// Bounding are the capabilities that a container can be given: those of the process that starts it, as Bounding lists
	// them. Nil: this process's.
	Bounding []string
	// Rlimits are set for every container, by name as RLIMIT_NOFILE.
	Rlimits []specs.POSIXRlimit
	// PidsLimit is the default limit of processes of a container; 0: none.
	PidsLimit int64
	// Seccomp and AppArmor hold for a container that says nothing of them; nil: unconfined for seccomp (as the CRI has
	// it), and the default profile for AppArmor where the host has it.
	Seccomp  *model.SecurityProfile
	AppArmor *model.SecurityProfile
	// AppArmorDefault is the profile that RuntimeDefault stands for (apparmor.Default); empty: the node has none.
	AppArmorDefault string
	// SeccompRoot is what relative paths of Localhost seccomp profiles are relative to; empty: they are refused.
	SeccompRoot string
	// CDISpecDirs are searched for CDI devices; nil: /etc/cdi and /var/run/cdi.
	CDISpecDirs []string
	// HookDirs are searched for files that give containers hooks; empty: none has any of them.
	HookDirs []string
	// Env are variables that each container has, where neither its image nor its configuration has them.
	Env []model.EnvVar
	// Mounts are host paths that each container has, where it has no mount of its own at their container path. One whose
	// host path is not there is left out with a warning.
	Mounts []model.Mount
	// RefuseMissing are host paths that are not made where a mount's configuration asks for that.
	RefuseMissing []string
	// Devices are those that each container has, where it has none of its own at their container path. One that the host
	// does not have is left out with a warning.
	Devices []model.Device
	// CgroupWritable lets containers of a cgroup v2 node write to their own cgroups.
	CgroupWritable bool
	// ShmSize is the size of a container's own /dev/shm, in bytes; 0: DefaultShmSize.
	ShmSize uint64
	// DeviceOwnership gives the devices that a container names to the user and the group that its security context names.
	DeviceOwnership bool
	// Annotations are names and patterns of annotations of the pod and the container that go into the spec, as
	// annotation.Passed has them. The container's win.
	Annotations []string
	// InSandbox: the OCI runtime runs the container in the pod's sandbox. Namespaces.PID is not used then: containers that
	// share their pod's have that of the sandbox.
	InSandbox bool
}

// Output is a spec and what else came out of making it.
type Output struct {
	// Spec shares parts with other specs (the seccomp profile): marshal it, do not write to what its pointers lead to.
	Spec       *specs.Spec
	User       model.User
	StopSignal syscall.Signal
	// Warnings say what was asked for and cannot be had here, each in a sentence.
	Warnings []string
}
