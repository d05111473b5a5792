// Package rootfs mounts a container's root file system: an overlay of the image's layers and the container's writable
// layer. It also unmounts it, removes what is left, measures the writable layer, and lists mounts.
package rootfs
