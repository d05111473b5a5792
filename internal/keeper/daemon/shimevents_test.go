package daemon

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	shimapi "berth/api/shim"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// TestAShimTellsThatMemoryWasShort: as that of a virtual machine does, whose kernel alone knows. Seen to fail without
// OOMSeen in the record of the end.
func TestAShimTellsThatMemoryWasShort(t *testing.T) {
	n := start(t)
	s := n.server
	end := func(id string, exit int, about string, name string) bool {
		c := s.newContainer(record.Container{ID: id, State: protocol.StateRunning, Shim: &record.Shim{}})
		close(c.started)
		s.containers.add(c)
		value, err := proto.Marshal(&shimapi.TaskOOM{ContainerId: about})
		if err != nil {
			t.Fatal(err)
		}
		s.shimEvent(&shimapi.Envelope{Event: &anypb.Any{TypeUrl: name, Value: value}})
		c.ended(pidfd.Exit{Code: exit, Known: true})
		return c.status().OOMKilled
	}
	for what, c := range map[string]struct {
		exit        int
		about, name string
		want        bool
	}{
		"killed":            {137, "killed", "containerd.events.TaskOOM", true},
		"typed":             {137, "typed", "type.googleapis.com/containerd.events.TaskOOM", true},
		"another-container": {137, "none", "containerd.events.TaskOOM", false},
		"another-event":     {137, "another-event", "containerd.events.TaskExit", false},
		"another-end":       {1, "another-end", "containerd.events.TaskOOM", false},
	} {
		if got := end(what, c.exit, c.about, c.name); got != c.want {
			t.Errorf("%s: OOMKilled is %v", what, got)
		}
	}
}
