package quota

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"

	"berth/internal/model"
)

// ParseSize reads a size such as 10g, 512m or 1073741824, in powers of 1024. The kernel counts in KiB:
// a part of one is one.
func ParseSize(text string) (uint64, error) {
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is no size such as 512m or 10g: %w", text, errdefs.ErrInvalidArgument)
	}
	return (uint64(n) + 1023) &^ 1023, nil
}

// Where the IDs begin that clients may choose, and those that Berth chooses; and where they end.
const (
	MinID = model.MinQuotaID
	maxID = model.MaxQuotaID
)

// ID is what a client says of its project ID.
type ID = model.QuotaID
