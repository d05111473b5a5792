package v1alpha2

import (
	"berth/api/pouch"
	"berth/internal/cri/request"
	criv1 "berth/internal/cri/v1"
	"berth/internal/model"
)

// FieldNames are what the API calls fields of the model, for errors: v1's names, and PouchContainer's for what v1 has
// no field for.
func FieldNames() request.Names {
	names := criv1.FieldNames()
	names[model.FieldContainerDiskQuota] = "config.linux.resources.disk_quota"
	names[model.FieldContainerQuotaID] = "config.quota_id"
	names[model.FieldUpdateDiskQuota] = "linux.disk_quota"
	names[model.FieldContainerNetPriority] = "config.net_priority"
	criv1.NameLimits(names, map[model.Field]request.Path{
		model.LimitUlimits:            "ulimits",
		model.LimitBlockWeight:        "blkio_weight",
		model.LimitBlockWeightDevices: "blkio_weight_device",
		model.LimitBlockReadBps:       "blkio_device_read_bps",
		model.LimitBlockWriteBps:      "blkio_device_write_bps",
		model.LimitBlockReadIOPS:      "blkio_device_read_IOps",
		model.LimitBlockWriteIOPS:     "blkio_device_write_IOps",
		model.LimitKernelMemory:       "kernel_memory",
		model.LimitMemoryReservation:  "memory_reservation",
		model.LimitMemorySwappiness:   "memory_swappiness",
		model.LimitPids:               "pids_limit",
	})
	return names
}

// Service is the gRPC service whose errors have these names.
var Service = pouch.RuntimeService_ServiceDesc.ServiceName
