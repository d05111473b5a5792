// Package v1 is the API of CRI v1 (k8s.io/cri-api/pkg/apis/runtime/v1): it translates its requests into package model,
// calls the domain, and translates the answers back. One file answers one call, and is named after it.
//
// A request is checked as a whole before anything is done: values that the interface does not allow are refused with
// InvalidArgument and the path of the field (config.linux.security_context.run_as_group), never ignored.
// Fields that this version of the interface does not know are left alone, as protobuf wants it.
package v1
