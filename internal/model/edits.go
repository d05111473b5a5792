package model

// Edits are what somebody other than its client adds to a container, such as a device plugin that gave it a device.
type Edits struct {
	Source      string            `json:"source"` // who adds it, for errors
	Env         []EnvVar          `json:"env,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Devices     []Device          `json:"devices,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"` // of the OCI spec, and such as name CDI devices
	CDIDevices  []string          `json:"cdiDevices,omitempty"`
}

// DeviceHolder is a container that devices are allocated to. ContainerID is empty until the container is made.
type DeviceHolder struct {
	SandboxID, Namespace, Pod, Container, ContainerID string
}

// DeviceStatus is the status of one device of a resource.
type DeviceStatus struct {
	ID      string
	Healthy bool
	NUMA    []int64
	Holders []DeviceHolder // several where an init container handed it on
}

// DeviceResource is a resource of a device plugin.
type DeviceResource struct {
	Name      string
	Endpoint  string // the socket's name in the directory of plugins
	Connected bool   // the plugin lives
	Problem   string // what is wrong with it, in a sentence; empty: nothing
	Devices   []DeviceStatus
}
