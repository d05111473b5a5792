// Package ocispec turns a container's configuration into an OCI runtime spec: the process as image and client say it
// together, the mounts, the devices, the limits, and what confines it. It reads the image's user database and looks at
// host paths that a mount or a device names; it changes nothing.
package ocispec
