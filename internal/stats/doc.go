// Package stats reads the resource usage of pods and containers: their cgroups (v1 and v2), network interfaces and
// writable layers. Each figure has the meaning that the kubelet expects. Reading starts no process. If a file system or
// a cgroup does not answer, only the figures of its own container are missing.
package stats
