// Nodeconformance runs Kubernetes' own suite of a node, test/e2e_node, against Berth or containerd, and compares what
// fails with a list of what is expected to. The suite brings an API server and etcd along; the kubelet, the suite and
// the programs in its images are built through the Go module proxy.
//
// All of it runs in namespaces and cgroups of its own, in which the suite finds what it expects of a machine:
// /var/lib/kubelet, a network interface with an address, systemd-run and systemctl for the kubelet's unit, and
// registries on loopback. Ending the first process there ends all.
package main
