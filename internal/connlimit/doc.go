// Package connlimit bounds the unauthenticated connections of a server: those whose clients have not presented yet what
// gives them a right to be served. When one more arrives, the listener closes the oldest connection of the address that
// has the most. So a flood of connections cannot take memory and descriptors without end, and cannot keep out a client
// that authenticates soon.
package connlimit
