// Package cri is what the APIs of the socket have in common: the listener, the
// gRPC server, and the interceptors in it that log a call, measure it, survive a panic and give an error its code.
//
// Each version of the interface is an API of its own in a folder below. An API translates requests into package model
// and back and calls the domain; it decides nothing.
package cri
