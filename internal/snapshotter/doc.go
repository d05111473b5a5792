// Package snapshotter speaks with a remote snapshotter: a program of the node that mounts layers of images before they
// are downloaded, and reads them from the registry as containers ask for them. It serves containerd's gRPC service of
// snapshots, as a proxy plugin of containerd does: stargz-snapshotter and SOCI for example.
//
// A snapshotter is a program that the operator has configured, and that runs as root. What it answers is checked only
// so far that berthd mounts no more of it than directories to read from.
package snapshotter
