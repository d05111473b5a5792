// Package ocispec makes the OCI runtime specification of a container from its configuration and its image: the process,
// mounts, devices, limits and confinement. It reads the image's user database and examines the host paths of mounts and
// devices. It changes nothing on the node.
package ocispec
