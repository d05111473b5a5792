package stage

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limit is a resource limit (getrlimit(2)).
type Limit struct {
	Resource   int    `json:"resource"`
	Soft, Hard uint64 `json:",omitempty"`
}

// LimitNumbers are the limits that the OCI runtime spec names.
var LimitNumbers = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
}

// String is RLIMIT_NAME=soft:hard.
func (l Limit) String() string {
	for name, n := range LimitNumbers {
		if n == l.Resource {
			return fmt.Sprintf("%s=%d:%d", name, l.Soft, l.Hard)
		}
	}
	return fmt.Sprintf("limit %d=%d:%d", l.Resource, l.Soft, l.Hard)
}
