// Package hostpath examines host paths that a pod names. Such a path may lead to a file system that does not answer:
// FUSE without its daemon, NFS without its server. A thread that waits for such a file system cannot be killed, and its
// process keeps all open files, locks and sockets even after kill -9. So this process only makes lookups that the
// kernel answers from its caches (RESOLVE_CACHED). A child process makes all others. A child that does not come back
// within some seconds is given up. Only a few of these wait for one file system: see waits.
//
// A path is the node's, also where Berth's own mounts are in a mount namespace of their own.
//
// The same goes for root file systems with remote layers, which a snapshotter reads from a registry.
package hostpath
