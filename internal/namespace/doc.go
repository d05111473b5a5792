// Package namespace makes the namespaces that the containers of a pod share. No process keeps them: each is pinned by a
// bind mount of its nsfs file. One short-lived thread makes all namespaces of a pod, sets the host name, writes the
// pod's sysctls, and ends.
package namespace
