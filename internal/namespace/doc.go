// Package namespace makes the namespaces that the containers of a pod share, and keeps them without a process: each is
// pinned by a bind mount of its nsfs file. One short-lived thread makes all of a pod's namespaces, sets the host name
// and writes the pod's sysctls while it is inside, and ends.
package namespace
