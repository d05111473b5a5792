// Package stats reads what pods and containers use: their cgroups (v1 and v2), their network interfaces and their
// writable layers, in the kubelet's meaning of each figure. Reading starts no process and waits for nobody:
// a file system or a cgroup that does not answer costs its own container its figures, and no other.
package stats
