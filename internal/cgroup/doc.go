// Package cgroup knows which control group hierarchies a node mounts and where a cgroup lies in them. On cgroup v2 that
// is one directory; on v1 it is one for each controller. Paths of cgroups are absolute, below the root of every
// hierarchy, as they stand in /proc/PID/cgroup of the host.
package cgroup
