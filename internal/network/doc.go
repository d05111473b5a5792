// Package network connects pods to the network: it gives them an address, a route, and ports of the host. If the node
// has a CNI configuration, its CNI plugins do that; otherwise the built-in bridge does. A pod's network is removed by
// the same provider that made it, even if the configuration has changed since.
package network
