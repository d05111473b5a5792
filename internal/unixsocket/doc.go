// Package unixsocket opens sockets that are reached by a path: one that a dead process left is replaced,
// one that somebody answers on is not.
package unixsocket
