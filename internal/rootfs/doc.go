// Package rootfs mounts a container's root file system: an overlay of the image's layers with a writable layer of the
// container's own, in the container's directory. It unmounts it, removes what is left, measures the writable layer, and
// says which mounts there are.
package rootfs
