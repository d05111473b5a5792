package handover

import (
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/logpump"
	"berth/internal/keeper/record"
)

// Format is the version of the state; a program that prints another one for --state-format is not executed.
const Format = 1

// State is a keeper whose waiters and log pumps are stopped. Descriptors in it are numbers of this process; -1: none.
type State struct {
	Format       int         `json:"format"`
	Generation   string      `json:"generation"`
	Upgrades     uint32      `json:"image"` // in place so far, the one under way included
	StartedAt    time.Time   `json:"startedAt"`
	HandbackOver bool        `json:"settled"`
	Lock         int         `json:"lock"`
	RPC          int         `json:"rpc"`
	FDs          int         `json:"fds"`
	Containers   []Container `json:"containers"`
	// Stored is what the service manager holds: see fdstore.Store.List.
	Stored map[string][]string `json:"stored,omitempty"`
}

// Container is a container of the state.
type Container struct {
	Record record.Container `json:"row"`
	Pidfd  int              `json:"pidfd"`
	Stdin  int              `json:"stdin"`
	// StdinClosed: a client has had the input closed.
	StdinClosed bool `json:"stdinClosed,omitempty"`

	Log     *logpump.LogState                    `json:"log,omitempty"`
	Pumps   map[logpump.Stream]logpump.PumpState `json:"pumps,omitempty"`
	Execs   []Exec                               `json:"execs,omitempty"`
	Owners  map[string]string                    `json:"owners,omitempty"`
	Clients map[string]string                    `json:"clients,omitempty"`
}

// Exec is an exec of a container.
type Exec struct {
	Record record.Exec `json:"row"`
	Pidfd  int         `json:"pidfd"`
	// EndedAgo is how long it has been over; 0: it is not, or an earlier version of the keeper has saved this.
	EndedAgo time.Duration `json:"endedAgo,omitempty"`
	// EndedAt is for earlier versions.
	EndedAt time.Time `json:"endedAt,omitzero"`
}

// descriptors are all that the state names. What is missing here is closed by the execve.
func (s *State) descriptors() []int {
	all := []int{s.Lock, s.RPC, s.FDs}
	for i := range s.Containers {
		all = s.Containers[i].append(all)
	}
	open := all[:0]
	for _, fd := range all {
		if fd >= 0 {
			open = append(open, fd)
		}
	}
	return open
}

// CloseCopies closes what was made for the state alone, when no other program takes it over. All other descriptors are
// those of this program.
func (s *State) CloseCopies() {
	for _, c := range s.Containers {
		if c.Log == nil {
			continue
		}
		for _, queues := range c.Log.Clients {
			for _, q := range queues {
				if q.Memory >= 0 {
					unix.Close(q.Memory)
				}
			}
		}
	}
}

func (c *Container) append(all []int) []int {
	all = append(all, c.Pidfd, c.Stdin)
	if c.Log != nil {
		all = append(all, c.Log.FD)
		for _, queues := range c.Log.Clients {
			for _, q := range queues {
				all = append(all, q.FD, q.Memory, q.Spill)
			}
		}
	}
	for _, p := range c.Pumps {
		all = append(all, p.FD)
		for _, fd := range p.Held {
			all = append(all, fd)
		}
	}
	for _, e := range c.Execs {
		all = append(all, e.Pidfd)
	}
	return all
}
