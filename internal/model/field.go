package model

// Field is the path of a field in what a client says of a pod (sandbox), a container or an update, by the names that
// fields have in JSON, as in "container.mounts[2].image". Each API has its own name of it: see package request of the
// APIs.
type Field string

// The fields that the domain finds fault with.
const (
	FieldSandboxCgroupParent  Field = "sandbox.cgroupParent"
	FieldSandboxDNS           Field = "sandbox.dns"
	FieldSandboxLogDirectory  Field = "sandbox.logDirectory"
	FieldSandboxSysctls       Field = "sandbox.sysctls"
	FieldSandboxUserNamespace Field = "sandbox.security.namespaces.user"
	FieldContainerDiskQuota   Field = "container.resources.diskQuota"
	FieldContainerImage       Field = "container.image.image"
	FieldContainerLogPath     Field = "container.logPath"
	FieldContainerMounts      Field = "container.mounts"
	FieldContainerPIDTarget   Field = "container.security.namespaces.targetID"
	FieldContainerQuotaID     Field = "container.quotaID"
	FieldUpdateDiskQuota      Field = "update.diskQuota"
	FieldNodePodCIDR          Field = "node.podCIDR"
)

// FieldError is what is wrong with a field. Its text names the model's field, which each API replaces by its own name.
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
