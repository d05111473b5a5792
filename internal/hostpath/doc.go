// Package hostpath looks at paths of the host that a pod names, and that may lead to a file system
// that does not answer: FUSE without its daemon, NFS without its server. A thread that waits for one cannot be killed,
// and keeps all that its process has open, locks and sockets too, beyond kill -9. So this process only asks
// for what the kernel answers from its caches (RESOLVE_CACHED), and a child process asks for the rest.
package hostpath
