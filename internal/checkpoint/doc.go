// Package checkpoint reads and writes the archive of a container's checkpoint: a tar in the layout that other runtimes
// and checkpointctl use. It writes an archive from a directory, reads what the archive says of the container, and
// unpacks it.
package checkpoint
