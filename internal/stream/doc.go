// Package stream serves what outlives a gRPC call: exec, attach and port-forward. An API asks it for an address
// (GetExec, GetAttach, GetPortForward); the address holds a token that is good for one connection and a short time. The
// client, mostly a kubelet that passes on the API server's connection, connects there with SPDY or WebSocket,
// and its streams are joined to the domain's.
//
// The protocols are those of k8s.io/cri-streaming, and two that it does not serve: v5.channel.k8s.io over WebSocket,
// whose clients can end their input, and SPDY tunnelled through WebSocket, which is how newer clients forward ports.
// That package's handlers are not used, since a client chooses how much memory they take: here, what a client has sent
// and nobody has taken yet has a bound for each connection and for all of them, as have streams and header blocks.
package stream
