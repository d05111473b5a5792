package model

import "errors"

// Field is the path of a field in what a client says of a pod (sandbox), a container or an update, by the names that
// fields have in JSON, as in "container.mounts[2].image". Each API has its own name of it: see package request of the
// APIs.
type Field string

// The fields that the domain finds fault with.
const (
	FieldSandboxCgroupParent    Field = "sandbox.cgroupParent"
	FieldSandboxDNS             Field = "sandbox.dns"
	FieldSandboxLogDirectory    Field = "sandbox.logDirectory"
	FieldSandboxSysctls         Field = "sandbox.sysctls"
	FieldSandboxUserNamespace   Field = "sandbox.security.namespaces.user"
	FieldContainerDiskQuota     Field = "container.resources.diskQuota"
	FieldContainerImage         Field = "container.image.image"
	FieldContainerLogPath       Field = "container.logPath"
	FieldContainerMounts        Field = "container.mounts"
	FieldContainerPIDTarget     Field = "container.security.namespaces.targetID"
	FieldContainerQuotaID       Field = "container.quotaID"
	FieldUpdateDiskQuota        Field = "update.diskQuota"
	FieldSandboxOverhead        Field = "sandbox.overhead"
	FieldSandboxResources       Field = "sandbox.resources"
	FieldContainerResources     Field = "container.resources"
	FieldContainerNetPriority   Field = "container.netPriority"
	FieldContainerUserNamespace Field = "container.security.namespaces.user"
	FieldContainerRunAsUser     Field = "container.security.runAsUser"
	FieldContainerRunAsGroup    Field = "container.security.runAsGroup"
	FieldContainerRunAsUsername Field = "container.security.runAsUsername"
	FieldContainerGroups        Field = "container.security.supplementalGroups"
	FieldUpdate                 Field = "update"
	FieldNodePodCIDR            Field = "node.podCIDR"
)

// Limits in Resources, which are within FieldContainerResources, FieldUpdate or FieldSandboxResources.
const (
	LimitCPUPeriod          Field = "cpuPeriod"
	LimitCPUQuota           Field = "cpuQuota"
	LimitCPUShares          Field = "cpuShares"
	LimitMemory             Field = "memoryLimit"
	LimitMemorySwap         Field = "memorySwap"
	LimitOOMScoreAdj        Field = "oomScoreAdj"
	LimitMemoryReservation  Field = "memoryReservation"
	LimitPids               Field = "pidsLimit"
	LimitKernelMemory       Field = "kernelMemory"
	LimitHugepages          Field = "hugepageLimits"
	LimitUnified            Field = "unified"
	LimitMemorySwappiness   Field = "memorySwappiness"
	LimitCPUSetCPUs         Field = "cpusetCPUs"
	LimitCPUSetMems         Field = "cpusetMems"
	LimitUlimits            Field = "ulimits"
	LimitBlockWeight        Field = "blockIO.weight"
	LimitBlockWeightDevices Field = "blockIO.weightDevices"
	LimitBlockReadBps       Field = "blockIO.readBps"
	LimitBlockWriteBps      Field = "blockIO.writeBps"
	LimitBlockReadIOPS      Field = "blockIO.readIOPS"
	LimitBlockWriteIOPS     Field = "blockIO.writeIOPS"
	LimitBlockIO            Field = "blockIO"
	LimitDiskQuota          Field = "diskQuota"
)

// FieldError is an error about a field. Its text names the model's field, which each API replaces by its own name.
type FieldError struct {
	Field Field
	Err   error
}

func (e *FieldError) Error() string { return string(e.Field) + ": " + e.Err.Error() }

// Unwrap gives the error the code of what is wrong.
func (e *FieldError) Unwrap() error { return e.Err }

// Wrong is a FieldError; nil where err is nil.
func (f Field) Wrong(err error) error {
	if err == nil {
		return nil
	}
	return &FieldError{Field: f, Err: err}
}

// Within says of an error about a field what the field is within: an error about "cpuPeriod" becomes one about
// "update.cpuPeriod". Any other error is returned as it is.
func (f Field) Within(err error) error {
	var field *FieldError
	if !errors.As(err, &field) {
		return err
	}
	return &FieldError{Field: f + "." + field.Field, Err: field.Err}
}
