// Package cluster runs a Kubernetes cluster on Berth: etcd, kube-apiserver, kube-controller-manager and kube-scheduler
// on one host, and three nodes, each with a berthd, a keeper, a kubelet and a kube-proxy of its own. The hosts are made
// of namespaces (test/cluster/host) and joined by a bridge that none but they see. What applications live through in a
// cluster is what the tests claim.
//
// `make cluster` runs the suite, which sets BERTH_CLUSTER=1; without it there are no tests here. With -keep no test
// runs: the cluster stays until it is interrupted, and its kubeconfig is printed. Kubernetes is built once, through the
// Go module proxy, and kept in the user's cache directory.
//
// Nodes 1 and 3 have Berth's built-in bridge, and node 2 has Debian's CNI plugins; -network says otherwise. Each node
// has a route to every other one's pods, as a cloud's router has or a network add-on sets.
package cluster
