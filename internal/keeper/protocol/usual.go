package protocol

import (
	"google.golang.org/protobuf/proto"

	api "berth/api/keeper"
)

// Usual are the messages of the life of each container and of each exec.
var Usual = []proto.Message{
	&api.RunRequest{}, &api.RunResponse{}, &api.ExecRequest{}, &api.ExecResponse{}, &api.ExecID{}, &api.ExecExit{},
	&api.Event{}, &api.SignalRequest{}, &api.DeleteRequest{}, &api.ContainerRequest{}, &api.ContainerStatus{},
	&api.Empty{},
}
