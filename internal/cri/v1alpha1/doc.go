// Package v1alpha1 is the Container Runtime Interface of July 2016: the gRPC services runtime.RuntimeService and
// runtime.ImageService, in proto2. It translates requests into package model and back, and decides nothing.
//
// This interface has names instead of metadata, and its requests have no UID. A pod that is created here gets the
// metadata from the labels that a kubelet sets. Without these labels it gets its name, the namespace default, and a UID
// derived from the name. A pod that was created by another API has the name namespace/name/uid/attempt here.
package v1alpha1
