// Package checkpoint knows the archive that a container's checkpoint is: a tar in the layout that other runtimes and
// checkpointctl have too. It writes one from a directory, reads what it says of the container, and unpacks it.
package checkpoint
