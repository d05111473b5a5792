package model

import (
	"cmp"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"berth/internal/codec"
)

// RuntimeType is what clients are told where containerd has the type of a container's shim.
const RuntimeType = "io.berth.v1"

// ContainerMetadata names a container. Name and Attempt are unique within a sandbox.
type ContainerMetadata struct {
	Name    string `json:"name"`
	Attempt uint32 `json:"attempt,omitempty"`
}

// ImageSpec is an image as a client names it.
type ImageSpec struct {
	Image              string            `json:"image"`
	UserSpecifiedImage string            `json:"userSpecifiedImage,omitempty"`
	RuntimeHandler     string            `json:"runtimeHandler,omitempty"`
	ImageRef           string            `json:"imageRef,omitempty"`
	Annotations        map[string]string `json:"annotations,omitempty"`
	SpecAnnotations    map[string]string `json:"specAnnotations,omitempty"` // PouchContainer's; kept and told
}

// EnvVar is an environment variable. Value may hold any byte but NUL.
type EnvVar struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Environment are variables in order. Its JSON keeps values that are not UTF-8, which JSON has no strings for.
type Environment []EnvVar

// rawVar is a variable in JSON. Bytes is a value that is not UTF-8; Value has U+FFFD in place of its odd bytes then.
type rawVar struct {
	EnvVar
	Bytes []byte `json:"bytes,omitempty"`
}

// MarshalJSON writes a list of variables as an earlier version does, with values that are not UTF-8 once more.
func (e Environment) MarshalJSON() ([]byte, error) {
	odd := func(v EnvVar) bool { return !utf8.ValidString(v.Value) }
	if !slices.ContainsFunc(e, odd) {
		return codec.Marshal([]EnvVar(e))
	}
	out := make([]rawVar, len(e))
	for i, v := range e {
		out[i].EnvVar = v
		if odd(v) {
			out[i].Bytes = []byte(v.Value)
		}
	}
	return codec.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON has written, or an earlier version.
func (e *Environment) UnmarshalJSON(b []byte) error {
	var in []rawVar
	if err := codec.Unmarshal(b, &in); err != nil {
		return err
	}
	*e = nil
	for _, v := range in {
		if v.Bytes != nil {
			v.Value = string(v.Bytes)
		}
		*e = append(*e, v.EnvVar)
	}
	return nil
}

// Propagation is how mounts spread between a host path and a container.
type Propagation string

const (
	PropagationPrivate         Propagation = "private"
	PropagationHostToContainer Propagation = "hostToContainer"
	PropagationBidirectional   Propagation = "bidirectional"
)

// Mount brings a host path, an image or a named volume into a container: one of HostPath, Image and Volume is set.
type Mount struct {
	Name          string `json:"name,omitempty"` // what the client calls it: only its status shows it
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath,omitempty"`
	// the name of a volume of the node's store, made if it does not exist
	Volume            string      `json:"volume,omitempty"`
	Readonly          bool        `json:"readonly,omitempty"`
	RecursiveReadOnly bool        `json:"recursiveReadOnly,omitempty"`
	SELinuxRelabel    bool        `json:"selinuxRelabel,omitempty"`
	Propagation       Propagation `json:"propagation,omitempty"`
	UIDMappings       []IDMapping `json:"uidMappings,omitempty"`
	GIDMappings       []IDMapping `json:"gidMappings,omitempty"`
	Image             *ImageSpec  `json:"image,omitempty"`
	ImageSubPath      string      `json:"imageSubPath,omitempty"`
	// Options are noexec, nodev and nosuid, each at most once.
	Options []string `json:"options,omitempty"`
}

// Device brings a host device into a container. Permissions is made of r, w and m.
type Device struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	Permissions   string `json:"permissions"`
}

// HugepageLimit limits huge pages of one size (`2MB`), in bytes.
type HugepageLimit struct {
	PageSize string `json:"pageSize"`
	Limit    uint64 `json:"limit"`
}

// WeightDevice is the share of block I/O of one device.
type WeightDevice struct {
	Path   string `json:"path"`   // of the device node on the host
	Weight uint16 `json:"weight"` // 10 to 1000
}

// ThrottleDevice limits block I/O on one device, in bytes or operations a second.
type ThrottleDevice struct {
	Path string `json:"path"` // of the device node on the host
	Rate uint64 `json:"rate"`
}

// LogLimits are what a client asks of the limits of a container's log; nil and empty: what the node has. See
// loglimit.Limits.
type LogLimits struct {
	MaxSize  *int64 `json:"maxSize,omitempty"` // 0: no limit
	MaxFiles *int   `json:"maxFiles,omitempty"`
	Rate     *int64 `json:"rate,omitempty"` // 0: no limit
	Burst    *int64 `json:"burst,omitempty"`
	Over     string `json:"over,omitempty"`
}

// BlockIO limits and weighs block I/O.
type BlockIO struct {
	Weight        uint16           `json:"weight,omitempty"` // 10 to 1000
	WeightDevices []WeightDevice   `json:"weightDevices,omitempty"`
	ReadBps       []ThrottleDevice `json:"readBps,omitempty"`
	WriteBps      []ThrottleDevice `json:"writeBps,omitempty"`
	ReadIOPS      []ThrottleDevice `json:"readIOPS,omitempty"`
	WriteIOPS     []ThrottleDevice `json:"writeIOPS,omitempty"`
}

// Ulimit is a resource limit of a container's processes (setrlimit(2)). Name is as in `nofile`; -1 is no limit.
type Ulimit struct {
	Name string `json:"name"`
	Hard int64  `json:"hard"`
	Soft int64  `json:"soft"`
}

// Resources are limits of a container or pod. Zero means "not set"; the kernel's default holds then.
type Resources struct {
	CPUPeriod     int64             `json:"cpuPeriod,omitempty"` // µs
	CPUQuota      int64             `json:"cpuQuota,omitempty"`  // µs of CPU time each period; -1 is no limit
	CPUShares     int64             `json:"cpuShares,omitempty"` // weight against others, 2 to 262144
	MemoryLimit   int64             `json:"memoryLimit,omitempty"`
	MemorySwap    int64             `json:"memorySwap,omitempty"` // memory and swap together; -1 is no limit
	OOMScoreAdj   int64             `json:"oomScoreAdj,omitempty"`
	CPUSetCPUs    string            `json:"cpusetCPUs,omitempty"`
	CPUSetMems    string            `json:"cpusetMems,omitempty"`
	HugepageLimit []HugepageLimit   `json:"hugepageLimits,omitempty"`
	Unified       map[string]string `json:"unified,omitempty"` // cgroup v2 files and what is written to them

	// What follows, CRI v1 has no fields for: PouchContainer's v1alpha2 and Berth's annotations bring it.

	BlockIO           *BlockIO `json:"blockIO,omitempty"`
	KernelMemory      int64    `json:"kernelMemory,omitempty"`      // cgroup v1 only
	MemoryReservation int64    `json:"memoryReservation,omitempty"` // a soft limit: memory.low of this cgroup alone on v2
	MemorySwappiness  *int64   `json:"memorySwappiness,omitempty"`  // 0 to 100; cgroup v1 only
	PidsLimit         int64    `json:"pidsLimit,omitempty"`         // -1 is no limit
	Ulimits           []Ulimit `json:"ulimits,omitempty"`
	// path, `/&/path`, `.*` or empty, to a size such as 10g
	DiskQuota map[string]string `json:"diskQuota,omitempty"`
}

// Capabilities are changes to the default set. "ALL" stands for every one. Names with and without CAP_ are taken.
type Capabilities struct {
	Add        []string `json:"add,omitempty"`
	Drop       []string `json:"drop,omitempty"`
	AddAmbient []string `json:"addAmbient,omitempty"`
}

// ContainerSecurity is a container's security context.
type ContainerSecurity struct {
	Capabilities             Capabilities     `json:"capabilities"`
	Privileged               bool             `json:"privileged,omitempty"`
	Namespaces               NamespaceOptions `json:"namespaces"`
	SELinux                  *SELinux         `json:"selinux,omitempty"`
	RunAsUser                *int64           `json:"runAsUser,omitempty"`
	RunAsGroup               *int64           `json:"runAsGroup,omitempty"`
	RunAsUsername            string           `json:"runAsUsername,omitempty"`
	ReadonlyRootfs           bool             `json:"readonlyRootfs,omitempty"`
	SupplementalGroups       []int64          `json:"supplementalGroups,omitempty"`
	SupplementalGroupsStrict bool             `json:"supplementalGroupsStrict,omitempty"`
	NoNewPrivs               bool             `json:"noNewPrivs,omitempty"`
	MaskedPaths              []string         `json:"maskedPaths,omitempty"`
	ReadonlyPaths            []string         `json:"readonlyPaths,omitempty"`
	Seccomp                  *SecurityProfile `json:"seccomp,omitempty"` // nil is Unconfined, as the CRI has it
	AppArmor                 *SecurityProfile `json:"apparmor,omitempty"`
}

// ContainerConfig is everything that a client says about a container when it creates one, a field
// for each of the CRI's and PouchContainer's.
type ContainerConfig struct {
	Metadata    ContainerMetadata `json:"metadata"`
	Name        string            `json:"name,omitempty"` // see Named
	Image       ImageSpec         `json:"image"`
	Command     []string          `json:"command,omitempty"`
	Args        []string          `json:"args,omitempty"`
	WorkingDir  string            `json:"workingDir,omitempty"`
	Env         Environment       `json:"env,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Devices     []Device          `json:"devices,omitempty"`
	CDIDevices  []string          `json:"cdiDevices,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	LogPath     string            `json:"logPath,omitempty"` // relative to SandboxConfig.LogDirectory
	Stdin       bool              `json:"stdin,omitempty"`
	StdinOnce   bool              `json:"stdinOnce,omitempty"`
	TTY         bool              `json:"tty,omitempty"`
	Resources   *Resources        `json:"resources,omitempty"`
	Security    ContainerSecurity `json:"security"`
	StopSignal  syscall.Signal    `json:"stopSignal,omitempty"`  // 0: the image's, else SIGTERM
	NetPriority int64             `json:"netPriority,omitempty"` // of its traffic (net_prio, cgroup v1)
	QuotaID     string            `json:"quotaID,omitempty"`     // empty or 0: none; -1: a free one; else 16777216 or more
	// Log are the limits of its log that it asks for; nil: those of the node.
	Log *LogLimits `json:"log,omitempty"`
	// RotateLog has the keeper rotate the log where neither the node nor Log says at which size.
	RotateLog bool `json:"rotateLog,omitempty"`
	// CreateHostPaths has a directory made where the host path of a mount does not exist.
	CreateHostPaths bool `json:"createHostPaths,omitempty"`
	// PodPrivileged says that the client calls the pod privileged as it asks for this container, whatever it called the
	// pod when that was made.
	PodPrivileged bool `json:"podPrivileged,omitempty"`
}

// Named is what clients that know no metadata call a container: Name, if such a client made it, else the metadata's. A
// container with a Name is the only one of its pod that is called so and has not ended; its Metadata.Attempt
// is the domain's to choose.
func (c *ContainerConfig) Named() string {
	if c.Name != "" {
		return c.Name
	}
	return c.Metadata.Name
}

// ContainerState is the state of a container as clients see it.
type ContainerState string

const (
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerPaused  ContainerState = "paused" // running, and frozen by its client
	ContainerExited  ContainerState = "exited"
	ContainerUnknown ContainerState = "unknown"
)

// Reasons why a container is in its state, in ContainerStatus.Reason.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonKeeperLost = "KeeperLost" // it ended while no keeper watched it, and the kernel kept no exit code
	ReasonRebooted   = "Rebooted"   // it was running when the node went down
	ReasonStartError = "StartError"
	ReasonPaused     = "Paused" // for clients of APIs that have no such state
)

// User is whom a container's init process runs as, as numbers in the container's user namespace.
type User struct {
	UID    int64   `json:"uid"`
	GID    int64   `json:"gid"`
	Groups []int64 `json:"groups,omitempty"`
}

// ContainerStatus is the status of a container, as clients are told it. It has a field for each that the status
// of a CRI version or of PouchContainer has, and they are published together, so that no client sees half a change.
type ContainerStatus struct {
	Making bool // it is still being made, and no client is told of it

	ID         string
	SandboxID  string
	Config     *ContainerConfig // shared and immutable: do not write to it
	State      ContainerState
	CreatedAt  time.Time
	StartedAt  time.Time // zero: never started
	FinishedAt time.Time // zero: not finished
	ExitCode   int32
	Reason     string
	Message    string
	ImageID    string // sha256:… of the image's configuration
	ImageRef   string // what ContainerStatus.image_ref reports: the repo digest, else the ID
	LogPath    string // absolute; empty: no log
	Resources  *Resources
	User       *User
	StopSignal syscall.Signal
	PID        int
	Volumes    []string // container paths that the image declares as volumes, sorted
	Env        []EnvVar // of its init process: the image's and the configuration's
	QuotaID    string   // of its project quota; empty: none
	// ImageTag is a tag of the image, of a container that was created by the image's ID; empty: it has none, or was
	// created by a name.
	ImageTag string
	// VolumeImages are the IDs of the images that it mounts, in the order of its mounts.
	VolumeImages []string
	// VolumePaths are the directories of the named volumes that it mounts, in the order of its mounts.
	VolumePaths []string
}

// Mounts are the mounts of its configuration, each named volume with its directory on the node.
func (s *ContainerStatus) Mounts() []Mount {
	if s.Config == nil {
		return nil
	}
	if len(s.VolumePaths) == 0 {
		return s.Config.Mounts
	}
	mounts, paths := slices.Clone(s.Config.Mounts), s.VolumePaths
	for i := range mounts {
		if mounts[i].Volume != "" && len(paths) > 0 {
			mounts[i].HostPath, paths = paths[0], paths[1:]
		}
	}
	return mounts
}

// ImageName is what people are shown as the container's image: the name that they gave, where the client tells it,
// else a tag.
func (s *ContainerStatus) ImageName() string {
	return cmp.Or(s.Config.Image.UserSpecifiedImage, s.ImageTag, s.Config.Image.Image)
}

// ContainerFilter selects containers; empty fields match all. IDs may be prefixes.
type ContainerFilter struct {
	ID        string
	SandboxID string
	States    []ContainerState
	Labels    map[string]string
}

// ContainerEventType says what happened to a container or, for a sandbox, to the sandbox itself.
type ContainerEventType string

const (
	EventCreated ContainerEventType = "created"
	EventStarted ContainerEventType = "started"
	EventStopped ContainerEventType = "stopped"
	EventDeleted ContainerEventType = "deleted"
)

// ContainerEvent tells of a change. Sandbox events have ContainerID equal to the sandbox's ID, as evented kubelets
// expect.
type ContainerEvent struct {
	ContainerID string
	SandboxID   string
	Type        ContainerEventType
	At          time.Time
	Sandbox     *SandboxStatus     // nil once the sandbox is removed, if its pod has another
	Containers  []*ContainerStatus // all of the sandbox's
}
