package v1

import (
	"maps"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// fieldNames are what v1 calls the fields of the model. It has none for disk quotas, which come by annotations.
var fieldNames = request.Names{
	model.FieldSandboxCgroupParent:  "config.linux.cgroup_parent",
	model.FieldSandboxDNS:           "config.dns_config",
	model.FieldSandboxLogDirectory:  "sandbox_config.log_directory",
	model.FieldSandboxSysctls:       "config.linux.sysctls",
	model.FieldSandboxUserNamespace: "config.linux.security_context.namespace_options.userns_options",
	model.FieldContainerDiskQuota:   `config.annotations["berth.dev/disk-quota"]`,
	model.FieldContainerImage:       "config.image.image",
	model.FieldContainerLogPath:     "config.log_path",
	model.FieldContainerMounts:      "config.mounts",
	model.FieldContainerPIDTarget:   "config.linux.security_context.namespace_options.target_id",
	model.FieldContainerQuotaID:     `config.annotations["berth.dev/quota-id"]`,
	model.FieldNodePodCIDR:          "runtime_config.network_config.pod_cidr",
}

// FieldNames are what the API calls fields of the model, for errors; it is the caller's to change.
func FieldNames() request.Names { return maps.Clone(fieldNames) }

// Service is the gRPC service whose errors have these names.
var Service = api.RuntimeService_ServiceDesc.ServiceName
