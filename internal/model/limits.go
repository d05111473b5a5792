package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// MaxID is the largest user or group ID that a container's process gets: what Kubernetes allows, and other runtimes
// refuse above.
const MaxID = math.MaxInt32

// MaxSwappiness is how readily the kernel swaps, at most.
const MaxSwappiness = 100

// The kernel's bounds of a weight of block I/O, in the words of cgroup v1.
const MinBlockWeight, MaxBlockWeight = 10, 1000

// ulimits are the names of setrlimit(2)'s limits.
var ulimits = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
	"rss", "rtprio", "rttime",
	"sigpending", "stack",
}

// CheckUlimit says what is wrong with a limit, whatever the host (errdefs.ErrInvalidArgument).
func CheckUlimit(u Ulimit) error {
	if !slices.Contains(ulimits, u.Name) {
		return fmt.Errorf("%q is no limit such as nofile: %w", u.Name, errdefs.ErrInvalidArgument)
	}
	if u.Hard < -1 || u.Soft < -1 {
		return fmt.Errorf("%s: %d to %d is negative, and not -1: %w", u.Name, u.Soft, u.Hard, errdefs.ErrInvalidArgument)
	}
	// -1 is no limit, and so the largest.
	if uint64(u.Soft) > uint64(u.Hard) {
		return fmt.Errorf("%s: the soft limit %d is above the hard one, %d: %w", u.Name, u.Soft, u.Hard,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// ImageUser reads USER of an image, user[:group]: its user is a number or a name, and nil and empty where the image
// names none.
func ImageUser(spec string) (uid *int64, name string, err error) {
	text, _, _ := strings.Cut(spec, ":")
	id, numeric, err := ParseSubject("user", text)
	if err != nil || !numeric {
		return nil, text, err
	}
	return &id, "", nil
}

// ParseSubject tells the number of a user or a group from its name; what is "user" or "group", for the error. What
// looks like a number and is no ID, such as -1 and 4294967296, is errdefs.ErrInvalidArgument.
func ParseSubject(what, text string) (id int64, numeric bool, err error) {
	if _, err := strconv.ParseInt(text, 10, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false, nil
	}
	id, ok := ParseID(text)
	if !ok {
		return 0, false, fmt.Errorf("%s %.64q is not a number from 0 to %d: %w", what, text,
			MaxID, errdefs.ErrInvalidArgument)
	}
	return id, true, nil
}

// ParseID reads a user or group ID, and takes nothing but digits.
func ParseID(text string) (id int64, ok bool) {
	if strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id <= MaxID
}

// Where the IDs of disk quotas begin that clients may choose, and those that Berth chooses; and where they end.
const (
	MinQuotaID = 1 << 24
	MaxQuotaID = 1<<32 - 2 // the highest number means "no ID"
)

// QuotaID is what a client says of its project ID.
type QuotaID struct {
	Any    bool   // a free one is wanted
	Number uint32 // this one is; 0: none
}

// ParseQuotaID reads a quota ID: empty or 0 for none, -1 for a free one, else 16777216 or more.
func ParseQuotaID(text string) (QuotaID, error) {
	switch text {
	case "", "0":
		return QuotaID{}, nil
	case "-1":
		return QuotaID{Any: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < MinQuotaID || n > MaxQuotaID {
		return QuotaID{}, fmt.Errorf("quota ID %q is none of 0 (none), -1 (a free one) and %d to %d: %w", text, MinQuotaID,
			uint32(MaxQuotaID), errdefs.ErrInvalidArgument)
	}
	return QuotaID{Number: uint32(n)}, nil
}
