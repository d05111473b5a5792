// Package cri has the parts that all APIs of the socket share: the listener, the gRPC server and its codec, and the
// interceptors that log and measure a call, recover from a panic, and give each error its gRPC code.
//
// Each API has a package of its own in a folder below. An API translates requests into package model, calls the domain,
// and translates the answer. It decides nothing.
package cri
