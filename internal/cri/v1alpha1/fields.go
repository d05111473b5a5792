package v1alpha1

import (
	"maps"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/cri/request"
	"berth/internal/model"
)

// fieldNames are what v1alpha1 calls the fields of the model.
var fieldNames = request.Names{
	model.FieldSandboxCgroupParent: "config.linux.cgroup_parent",
	model.FieldSandboxDNS:          "config.dns_options",
	model.FieldSandboxLogDirectory: "sandbox_config.log_directory",
	model.FieldContainerImage:      "config.image.image",
	model.FieldContainerLogPath:    "config.log_path",
	model.FieldContainerMounts:     "config.mounts",

	model.FieldSandboxResources + "." + model.LimitCPUQuota:          "config.resources.cpu.limits",
	model.FieldSandboxResources + "." + model.LimitCPUShares:         "config.resources.cpu.requests",
	model.FieldSandboxResources + "." + model.LimitMemory:            "config.resources.memory.limits",
	model.FieldSandboxResources + "." + model.LimitMemoryReservation: "config.resources.memory.requests",

	model.FieldContainerResources + "." + model.LimitCPUPeriod:   "config.linux.resources.cpu_period",
	model.FieldContainerResources + "." + model.LimitCPUQuota:    "config.linux.resources.cpu_quota",
	model.FieldContainerResources + "." + model.LimitCPUShares:   "config.linux.resources.cpu_shares",
	model.FieldContainerResources + "." + model.LimitMemory:      "config.linux.resources.memory_limit_in_bytes",
	model.FieldContainerResources + "." + model.LimitOOMScoreAdj: "config.linux.resources.oom_score_adj",
}

// FieldNames are what the API calls fields of the model, for errors; it is the caller's to change.
func FieldNames() request.Names { return maps.Clone(fieldNames) }

// Service is the gRPC service whose errors have these names.
var Service = api.RuntimeService_ServiceDesc.ServiceName
