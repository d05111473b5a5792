// Package manifest reads Kubernetes manifests and turns their pods into requests of the Container Runtime Interface,
// as a kubelet does: pods, those that the controllers of workloads would make, and the ConfigMaps and Secrets to which
// they refer. It changes nothing on the node: the caller gives it directories of volumes, images and addresses.
//
// A field of a manifest is supported, or changes nothing on a single node, or is refused with an error that has the
// path of the field.
package manifest
