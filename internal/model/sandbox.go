package model

import (
	"fmt"
	"time"
)

// SandboxMetadata names a pod. The four fields together are unique among the sandboxes of a node.
type SandboxMetadata struct {
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Attempt   uint32 `json:"attempt,omitempty"`
}

// DNS is the content of a pod's resolv.conf. Nil means the node's own file.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Protocol is a transport protocol of a port mapping.
type Protocol string

const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
)

// PortMapping asks for a port of the host. HostPort 0 asks for none.
type PortMapping struct {
	Protocol      Protocol `json:"protocol"`
	ContainerPort int32    `json:"containerPort"`
	HostPort      int32    `json:"hostPort,omitempty"`
	HostIP        string   `json:"hostIP,omitempty"`
}

// NamespaceMode says whose namespace a container lives in.
type NamespaceMode string

const (
	NamespacePod       NamespaceMode = "pod"
	NamespaceContainer NamespaceMode = "container"
	NamespaceNode      NamespaceMode = "node"
	NamespaceTarget    NamespaceMode = "target" // PID only: the namespace of NamespaceOptions.TargetID
)

// IDMapping maps Length user or group IDs from ContainerID on to those from HostID on.
type IDMapping struct {
	HostID      uint32 `json:"hostID"`
	ContainerID uint32 `json:"containerID"`
	Length      uint32 `json:"length"`
}

// HostID is the node's ID for one in a user namespace, where the mappings have it.
func HostID(mappings []IDMapping, id uint32) (host uint32, mapped bool) {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Length {
			return m.HostID + (id - m.ContainerID), true
		}
	}
	return 0, false
}

// UserNamespace asks for a user namespace of the pod's own (Mode pod) or for the node's (Mode node).
type UserNamespace struct {
	Mode NamespaceMode `json:"mode"`
	UIDs []IDMapping   `json:"uids,omitempty"`
	GIDs []IDMapping   `json:"gids,omitempty"`
}

// NamespaceOptions are the namespace choices of a pod or a container. An empty mode is NamespacePod.
type NamespaceOptions struct {
	Network  NamespaceMode  `json:"network,omitempty"`
	PID      NamespaceMode  `json:"pid,omitempty"`
	IPC      NamespaceMode  `json:"ipc,omitempty"`
	TargetID string         `json:"targetID,omitempty"`
	User     *UserNamespace `json:"user,omitempty"`
}

// SELinux is an SELinux label in parts.
type SELinux struct {
	User  string `json:"user,omitempty"`
	Role  string `json:"role,omitempty"`
	Type  string `json:"type,omitempty"`
	Level string `json:"level,omitempty"`
}

// ProfileType is the kind of a seccomp or AppArmor profile.
type ProfileType string

const (
	ProfileRuntimeDefault ProfileType = "RuntimeDefault"
	ProfileUnconfined     ProfileType = "Unconfined"
	ProfileLocalhost      ProfileType = "Localhost"
)

// SecurityProfile chooses a seccomp or AppArmor profile. LocalhostRef is a path (seccomp) or a profile's name
// (AppArmor).
type SecurityProfile struct {
	Type         ProfileType `json:"type"`
	LocalhostRef string      `json:"localhostRef,omitempty"`
}

// SandboxSecurity is the security context that the containers of a pod have in common.
type SandboxSecurity struct {
	Namespaces               NamespaceOptions `json:"namespaces"`
	SELinux                  *SELinux         `json:"selinux,omitempty"`
	RunAsUser                *int64           `json:"runAsUser,omitempty"`
	RunAsGroup               *int64           `json:"runAsGroup,omitempty"`
	ReadonlyRootfs           bool             `json:"readonlyRootfs,omitempty"`
	SupplementalGroups       []int64          `json:"supplementalGroups,omitempty"`
	SupplementalGroupsStrict bool             `json:"supplementalGroupsStrict,omitempty"`
	Privileged               bool             `json:"privileged,omitempty"`
	Seccomp                  *SecurityProfile `json:"seccomp,omitempty"`
	AppArmor                 *SecurityProfile `json:"apparmor,omitempty"`
}

// SandboxConfig is everything that a client says about a pod when it runs one.
type SandboxConfig struct {
	Metadata     SandboxMetadata   `json:"metadata"`
	Name         string            `json:"name,omitempty"` // see Named
	Hostname     string            `json:"hostname,omitempty"`
	LogDirectory string            `json:"logDirectory,omitempty"`
	DNS          *DNS              `json:"dns,omitempty"`
	PortMappings []PortMapping     `json:"portMappings,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	CgroupParent string            `json:"cgroupParent,omitempty"`
	// it gets a cgroup below CgroupParent, which else is its own
	OwnCgroup bool              `json:"ownCgroup,omitempty"`
	Security  SandboxSecurity   `json:"security"`
	Sysctls   map[string]string `json:"sysctls,omitempty"`
	LXCFS     bool              `json:"lxcfs,omitempty"` // its containers see their own share in /proc, through lxcfs
	Overhead  *Resources        `json:"overhead,omitempty"`
	Resources *Resources        `json:"resources,omitempty"`
}

// Named is what clients that know no metadata call a pod: Name, if such a client made it, else a name made of
// the metadata, whose parts have no slashes. A pod with a Name is the only one that is called so and has not stopped;
// its Metadata.Attempt is the domain's to choose.
func (c *SandboxConfig) Named() string {
	if c.Name != "" {
		return c.Name
	}
	m := c.Metadata
	return fmt.Sprintf("%s/%s/%s/%d", m.Namespace, m.Name, m.UID, m.Attempt)
}

// NodeNetwork tells whether the pod lives in the node's network.
func (c *SandboxConfig) NodeNetwork() bool { return c.Security.Namespaces.Network == NamespaceNode }

// OwnIPC tells whether the pod has an IPC namespace and a /dev/shm of its own, not the node's.
func (c *SandboxConfig) OwnIPC() bool { return c.Security.Namespaces.IPC != NamespaceNode }

// UserNamespace is the user namespace that the pod asks for; nil: the node's.
func (c *SandboxConfig) UserNamespace() *UserNamespace {
	if user := c.Security.Namespaces.User; user != nil && user.Mode == NamespacePod {
		return user
	}
	return nil
}

// SandboxState is the state of a pod's sandbox.
type SandboxState string

const (
	SandboxReady    SandboxState = "ready"
	SandboxNotReady SandboxState = "notready"
)

// SandboxStatus is the status of a sandbox, as clients are told it.
type SandboxStatus struct {
	Making bool // it is still being made, and no client is told of it

	ID             string
	Config         *SandboxConfig // shared and immutable: do not write to it
	State          SandboxState
	CreatedAt      time.Time
	IPs            []string // the first is the pod's primary IP; empty in the node's network
	RuntimeHandler string
	PID            int    // of its init process; 0: it has none, as most
	NetNS          string // the path of the pod's network namespace; empty in the node's network, and once it has stopped
}

// SandboxFilter selects sandboxes; empty fields match all. ID may be a prefix.
type SandboxFilter struct {
	ID     string
	State  SandboxState
	Labels map[string]string
}
