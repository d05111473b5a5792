// Package stream serves what outlives a gRPC call: exec, attach and port-forward. An API asks it for an address
// (GetExec, GetAttach, GetPortForward); the address holds a token that is good for one connection and a short time. The
// client, mostly a kubelet that passes on the API server's connection, connects there with SPDY or WebSocket,
// and its streams are joined to the domain's.
//
// The protocols are those of k8s.io/cri-streaming. Two that clients use and that package does not serve are added here:
// v5.channel.k8s.io over WebSocket, whose clients can end their input (with v4, which differs in that alone), and SPDY
// tunnelled through WebSocket, which is how newer clients forward ports.
package stream
