package runtime

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
)

// Phases are the parts of a start, each beginning where the one before it ended. One goroutine at a time writes.
type Phases struct {
	last time.Time
	List []*api.Phase
}

// NewPhases begins with the first phase.
func NewPhases() *Phases { return &Phases{last: time.Now()} }

// End ends the phase that has this name.
func (p *Phases) End(name string) {
	now := time.Now()
	p.List = append(p.List, &api.Phase{Name: name, Begin: timestamppb.New(p.last), Took: durationpb.New(now.Sub(p.last))})
	p.last = now
}
