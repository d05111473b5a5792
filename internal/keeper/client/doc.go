// Package client is berthd's side of the connection to berth-keeper. It also starts a keeper if none runs. The keeper
// itself is package daemon, which links libcontainer. This package does not, so that berthd stays small. The protocol
// is in docs/keeper-protocol.md and package protocol.
package client
