package daemon

import (
	"context"
	"strings"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	shimapi "berth/api/shim"
	"berth/internal/keeper/record"
)

// registerShimEvents serves the events of containerd's shims, which send them to the keeper's socket.
func (s *Server) registerShimEvents(rpc *ttrpc.Server) {
	rpc.RegisterService("containerd.services.events.ttrpc.v1.Events", &ttrpc.ServiceDesc{
		Methods: map[string]ttrpc.Method{
			"Forward": func(_ context.Context, unmarshal func(any) error) (any, error) {
				var request shimapi.ForwardRequest
				if err := unmarshal(&request); err != nil {
					return nil, err
				}
				s.shimEvent(request.Envelope)
				return &shimapi.Empty{}, nil
			},
		},
	})
}

// oomEvent is the end of the name of the one event that tells what nothing else does: that the kernel, perhaps the one
// of a virtual machine, has killed a process for want of memory. The ends of containers are learned from their proxies.
const oomEvent = "containerd.events.TaskOOM"

func (s *Server) shimEvent(e *shimapi.Envelope) {
	if !strings.HasSuffix(e.GetEvent().GetTypeUrl(), oomEvent) {
		return
	}
	var oom shimapi.TaskOOM
	if proto.Unmarshal(e.Event.Value, &oom) != nil {
		return
	}
	c, err := s.containers.get(oom.ContainerId)
	if err != nil || c.Record().Shim == nil {
		return
	}
	c.log.Info("the shim says that a process of the container was killed for want of memory", "container", c.record.Name)
	c.alter(func(r *record.Container) { r.OOMSeen = true })
}
