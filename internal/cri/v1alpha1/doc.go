// Package v1alpha1 is the Container Runtime Interface as it was in July 2016: the gRPC services
// runtime.RuntimeService and runtime.ImageService, in proto2. It translates requests into package model and back,
// and decides nothing.
//
// The interface has names where later ones have metadata, and no request has a UID. A pod that is made here gets
// the metadata that a kubelet's labels on it say, and else its name, the namespace default and a UID made of the name;
// a pod that is made elsewhere is called namespace/name/uid/attempt here.
package v1alpha1
