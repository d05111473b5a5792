// Package client is berthd's side of the berth-keeper: the client, and the start of a keeper where none runs. The
// keeper's own side is package daemon and what that imports, which links libcontainer; this package does not, so that
// berthd stays small. What the two say to each other is in docs/keeper-protocol.md and package protocol.
package client
