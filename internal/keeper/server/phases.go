package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
)

// phases are the parts of a start, each beginning where the one before it ended. One goroutine at a time writes.
type phases struct {
	last time.Time
	list []*api.Phase
}

func newPhases() *phases { return &phases{last: time.Now()} }

// end ends the phase that has this name.
func (p *phases) end(name string) {
	now := time.Now()
	p.list = append(p.list, &api.Phase{Name: name, Begin: timestamppb.New(p.last), Took: durationpb.New(now.Sub(p.last))})
	p.last = now
}
