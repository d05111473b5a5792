// Package network gives a pod its network: an address, a way out, and ports of the host. Where the node has a CNI
// configuration its plugins do that; else the built-in bridge. A pod is taken down by what set it up, whatever the
// configuration has become since.
package network
