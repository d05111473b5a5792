package stream

import (
	"berth/internal/model"
	"berth/internal/pod"
)

// request is one of the kinds of requests.
type request interface {
	target() string // what the client is one of
}

func (r ExecRequest) target() string        { return "container " + r.ContainerID }
func (r AttachRequest) target() string      { return "container " + r.ContainerID }
func (r PortForwardRequest) target() string { return "pod " + r.SandboxID }

// Wanted says which streams a client will bring. With TTY, output comes on stdout alone.
type Wanted struct {
	TTY, Stdin, Stdout, Stderr bool
}

// ExecRequest asks for an address at which a command runs.
type ExecRequest struct {
	ContainerID string
	Cmd         []string
	As          model.ExecAs
	Wanted
}

// AttachRequest asks for an address at which a container's own streams are joined.
type AttachRequest struct {
	ContainerID string
	// Start: the container is created, and started when the client connects.
	Start bool
	Size  pod.TermSize // of its terminal, with Start; zero: not known
	Wanted
}

// PortForwardRequest asks for an address at which ports of a pod can be reached. Ports are for the WebSocket protocols
// that cannot name them later; SPDY clients name a port for each stream.
type PortForwardRequest struct {
	SandboxID string
	Ports     []int32
}
