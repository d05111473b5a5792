// Package probe runs the probes and hooks of containers, as a kubelet does. Commands run through the CRI's ExecSync.
// HTTP requests, TCP connections and health checks of gRPC go from the node to the pod's address, and not through
// a port-forward: that would reach a server that listens on 127.0.0.1 only, which in a cluster fails its probes.
package probe
