// Package bridge is the network that pods have where a node has no CNI configuration: a Linux bridge, a veth pair
// for each pod, addresses from host-local's allocator, and one nftables table for masquerading and host ports.
// All of it is made in-process, through netlink; nothing is forked.
//
// A record of an endpoint is on disk before anything of it is in the kernel, and goes last, so that whatever a kill -9
// leaves behind can be found and removed. The bridge, its table and its range come with the first endpoint and go,
// after a linger, with the last.
//
// Masquerading and host ports are rules of Berth's own table. A table can accept a packet only for itself:
// where another one drops forwarded traffic (Docker sets the policy of the FORWARD chain to drop), the pods' traffic
// is dropped, and that one must be told to let the bridge through. The log says so when such a table is seen.
//
// A host port answers on every address of the node, 127.0.0.1 included, to clients on the node, in pods (the same one
// too) and outside. On [::1] it answers where net.bridge.bridge-nf-call-ip6tables is 0: with 1 the kernel changes the
// answer's address back to ::1 while the packet is still on the bridge, and then drops it for that address.
package bridge
