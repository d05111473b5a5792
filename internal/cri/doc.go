// Package cri is what the doors of the Container Runtime Interface have in common: the socket that they answer on, the
// gRPC server, and the interceptors in it that log a call, measure it, survive a panic and give an error its code.
//
// Each version of the interface is a door of its own in a folder below. A door translates requests into package model and
// back and calls the domain; it decides nothing.
package cri
