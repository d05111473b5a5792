package v1

import (
	"maps"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// fieldNames are what v1 calls the fields of the model. It has none for disk quotas, which come by annotations.
var fieldNames = request.Names{
	model.FieldSandboxCgroupParent:    "config.linux.cgroup_parent",
	model.FieldSandboxDNS:             "config.dns_config",
	model.FieldSandboxLogDirectory:    "sandbox_config.log_directory",
	model.FieldSandboxSysctls:         "config.linux.sysctls",
	model.FieldSandboxUserNamespace:   "config.linux.security_context.namespace_options.userns_options",
	model.FieldContainerDiskQuota:     `config.annotations["berth.dev/disk-quota"]`,
	model.FieldContainerImage:         "config.image.image",
	model.FieldContainerLogPath:       "config.log_path",
	model.FieldContainerMounts:        "config.mounts",
	model.FieldContainerPIDTarget:     "config.linux.security_context.namespace_options.target_id",
	model.FieldContainerUserNamespace: "config.linux.security_context.namespace_options.userns_options",
	model.FieldContainerNetPriority:   `config.annotations["berth.dev/net-priority"]`,
	model.FieldContainerRunAsUser:     "config.linux.security_context.run_as_user",
	model.FieldContainerRunAsGroup:    "config.linux.security_context.run_as_group",
	model.FieldContainerRunAsUsername: "config.linux.security_context.run_as_username",
	model.FieldContainerGroups:        "config.linux.security_context.supplemental_groups",
	model.FieldContainerQuotaID:       `config.annotations["berth.dev/quota-id"]`,
	model.FieldNodePodCIDR:            "runtime_config.network_config.pod_cidr",
}

// limitNames are what v1 calls limits in its resources, and those that come by annotations.
var (
	limitNames = map[model.Field]request.Path{
		model.LimitCPUPeriod:   "cpu_period",
		model.LimitCPUQuota:    "cpu_quota",
		model.LimitCPUShares:   "cpu_shares",
		model.LimitMemory:      "memory_limit_in_bytes",
		model.LimitMemorySwap:  "memory_swap_limit_in_bytes",
		model.LimitOOMScoreAdj: "oom_score_adj",
		model.LimitCPUSetCPUs:  "cpuset_cpus",
		model.LimitCPUSetMems:  "cpuset_mems",
		model.LimitHugepages:   "hugepage_limits",
		model.LimitUnified:     "unified",
	}
	annotatedLimits = map[model.Field]string{
		model.LimitUlimits:           "ulimits",
		model.LimitBlockIO:           "blkio",
		model.LimitKernelMemory:      "kernel-memory",
		model.LimitMemoryReservation: "memory-reservation",
		model.LimitMemorySwappiness:  "memory-swappiness",
		model.LimitPids:              "pids-limit",
	}
)

// FieldNames are what the API calls fields of the model, for errors; it is the caller's to change.
func FieldNames() request.Names {
	names := maps.Clone(fieldNames)
	NameLimits(names, limitNames)
	for limit, name := range annotatedLimits {
		annotation := request.Path(`annotations["berth.dev/` + name + `"]`)
		names[model.FieldContainerResources+"."+limit] = "config." + annotation
		names[model.FieldUpdate+"."+limit] = annotation // an update is checked with what the container has
	}
	return names
}

// MethodNames are what the requests of a service's methods call fields that have the given names in all other requests,
// by service and method.
func MethodNames(service string, names request.Names) map[string]request.Names {
	update, restore := maps.Clone(names), maps.Clone(names)
	for field, name := range names {
		if strings.HasPrefix(string(field), "sandbox.") {
			update[field] = request.Path(strings.TrimPrefix(string(name), "config.linux."))
		}
		if within, ok := strings.CutPrefix(string(name), "config."); ok && strings.HasPrefix(string(field), "container.") {
			restore[field] = request.Path("container_configs[]." + within) // the error says which container it is about
		}
	}
	restore[model.FieldSandboxLogDirectory] = "config.log_directory"
	return map[string]request.Names{
		service + "/UpdatePodSandboxResources": update,
		service + "/RestorePod":                restore,
	}
}

// NameLimits adds what an API calls limits in the resources of a pod, a container and an update.
func NameLimits(names request.Names, limits map[model.Field]request.Path) {
	for limit, name := range limits {
		names[model.FieldSandboxOverhead+"."+limit] = "config.linux.overhead." + name
		names[model.FieldSandboxResources+"."+limit] = "config.linux.resources." + name
		names[model.FieldContainerResources+"."+limit] = "config.linux.resources." + name
		names[model.FieldUpdate+"."+limit] = "linux." + name
	}
}

// Service is the gRPC service whose errors have these names.
var Service = api.RuntimeService_ServiceDesc.ServiceName
