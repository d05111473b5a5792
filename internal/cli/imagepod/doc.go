// Package imagepod makes the pod of `berth run IMAGE`: what the flags of docker run and podman run say becomes a pod of
// one container, as a manifest has it.
package imagepod
