// Package keeper is berthd's side of the berth-keeper: the types that both sides share, the client, and the start of a
// keeper where none runs. The keeper's own side is in the packages below this one, which link libcontainer; this one
// does not, so that berthd stays small.
package keeper
