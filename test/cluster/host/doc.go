// Package host makes hosts of namespaces: a process that is the init of a mount, network, PID, IPC, UTS and cgroup
// namespace of its own, whose root is an overlay of the machine's. Programs that believe they have a whole machine
// (berthd, a kubelet, kube-proxy, an API server) run in such a host beside each other, and change nothing of the
// machine that they are on.
//
// All of a host ends with its init, and the init ends with the process that started the host, however that ends. What
// remains then is the host's directory and its empty cgroups.
package host
