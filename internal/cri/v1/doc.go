// Package v1 is the API of CRI v1 (k8s.io/cri-api/pkg/apis/runtime/v1). It translates requests into package model,
// calls the domain, and translates the answers back. Each call has a file, which is named after the call.
//
// A request is checked completely before anything is done. Values that the interface does not allow are refused with
// InvalidArgument and the path of the field (config.linux.security_context.run_as_group). Fields that this version of
// the interface does not define are ignored, as protobuf requires.
package v1
