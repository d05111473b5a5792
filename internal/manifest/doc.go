// Package manifest reads Kubernetes Pod manifests and turns them into requests of the Container Runtime Interface, as a
// kubelet does. It changes nothing on the node: the caller gives it directories of volumes, images and addresses.
//
// A field of a manifest is either supported, or refused with an error that has the path of the field.
package manifest
