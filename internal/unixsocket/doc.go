// Package unixsocket opens listening sockets at a path. A socket that a dead process has left is replaced. If a process
// still answers on the socket, opening it fails.
package unixsocket
