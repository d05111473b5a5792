package daemon

import (
	"google.golang.org/protobuf/types/known/durationpb"

	api "berth/api/keeper"
	"berth/internal/keeper/logpump"
)

// counts are the keeper's numbers for who watches the node.
func (s *Server) counts() *api.Counts {
	logs := logpump.Total()
	n := &api.Counts{
		Backlog: s.backlogs.Held(), LogBytes: logs.Bytes, LogLinesCut: logs.Cut, LogDropped: logs.Dropped,
		LogRotations: logs.Rotations, LogRemovedBytes: logs.Removed, LogLimitedLines: logs.LimitedLines,
		LogLimitedBytes: logs.LimitedBytes, LogHeld: durationpb.New(logs.Held),
	}
	for _, c := range s.containers.all() {
		c.mu.Lock()
		n.Execs += int32(len(c.execs))
		c.mu.Unlock()
	}
	for _, ses := range s.escrow.holders() {
		n.Holders++
		n.Queue += int32(ses.Waiting())
	}
	if s.escrow.store != nil {
		n.Holders++
	}
	return n
}
