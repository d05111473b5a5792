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
	return names
}

// Service is the gRPC service whose errors have these names.
var Service = pouch.RuntimeService_ServiceDesc.ServiceName
