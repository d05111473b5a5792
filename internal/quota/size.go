package quota

import (
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"
)

// ParseSize reads a size such as 10g, 512m or 1073741824, in powers of 1024. The kernel counts in KiB: a part of one is one.
func ParseSize(text string) (uint64, error) {
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is no size such as 512m or 10g: %w", text, errdefs.ErrInvalidArgument)
	}
	return (uint64(n) + 1023) &^ 1023, nil
}

// Where the IDs begin that clients may choose, and those that Berth chooses.
const (
	MinID = 1 << 24
	maxID = 1<<32 - 2 // the highest number means "no ID"
)

// ID is what a client says of its project ID.
type ID struct {
	Any    bool   // a free one is wanted
	Number uint32 // this one is; 0: none
}

// ParseID reads a quota ID: empty or 0 for none, -1 for a free one, else 16777216 or more.
func ParseID(text string) (ID, error) {
	switch text {
	case "", "0":
		return ID{}, nil
	case "-1":
		return ID{Any: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < MinID || n > maxID {
		return ID{}, fmt.Errorf("quota ID %q is none of 0 (none), -1 (a free one) and %d to %d: %w", text, MinID, uint32(maxID),
			errdefs.ErrInvalidArgument)
	}
	return ID{Number: uint32(n)}, nil
}
