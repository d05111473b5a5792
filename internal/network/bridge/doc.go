// Package bridge is the network of pods on a node without a CNI configuration: a Linux bridge, a veth pair for each
// pod, addresses from host-local's allocator, and one nftables table for masquerading and host ports. All of it is made
// through netlink; no process is started.
//
// The record of an endpoint is on disk before anything of the endpoint is in the kernel, and is removed last. So
// everything that a kill -9 leaves behind can be found and removed. The bridge, its table and its addresses are made
// with the first endpoint. They are removed some time after the last endpoint.
//
// Masquerading and host ports are rules in Berth's own table. A table can accept a packet only for itself: if another
// table drops forwarded traffic (Docker sets the policy of the FORWARD chain to drop), the pods' traffic is dropped.
// The administrator then has to allow the bridge in that table. If such a table is found, a warning is logged.
//
// A host port is reachable on every address of the node, 127.0.0.1 included, from the node, from pods (also from its
// own pod) and from outside. On [::1] it is reachable only if net.bridge.bridge-nf-call-ip6tables is 0. If it is 1, the
// kernel changes the answer's address back to ::1 while the packet is still on the bridge, and then drops the packet
// because of that address.
package bridge
