// Package manifest reads Kubernetes Pod manifests and turns them into requests of the Container Runtime Interface, as a
// kubelet would make them. It touches nothing on the node: directories of volumes, images and addresses are given
// to it.
//
// What a manifest asks for is done or refused with the path of its field; nothing is left out in silence.
package manifest
