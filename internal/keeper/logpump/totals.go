package logpump

import (
	"sync/atomic"
	"time"
)

// Totals are what the pumps of this process have done, of all logs.
type Totals struct {
	Bytes   uint64 // of records that were written
	Cut     uint64 // records that ended in the middle of a line, since it was too long
	Dropped uint64 // bytes of records that could not be written

	Rotations    uint64        // files that were full
	Removed      uint64        // bytes of the oldest files, which were removed
	LimitedLines uint64        // lines that were left out, since they were over the rate
	LimitedBytes uint64        // bytes of the records of these
	Held         time.Duration // how long streams that had output have waited for the rate
}

var totals struct {
	bytes, cut, dropped                            atomic.Uint64
	rotations, removed, limitedLines, limitedBytes atomic.Uint64
	held                                           atomic.Int64
}

// Total is what there has been so far.
func Total() Totals {
	return Totals{Bytes: totals.bytes.Load(), Cut: totals.cut.Load(), Dropped: totals.dropped.Load(),
		Rotations: totals.rotations.Load(), Removed: totals.removed.Load(), LimitedLines: totals.limitedLines.Load(),
		LimitedBytes: totals.limitedBytes.Load(), Held: time.Duration(totals.held.Load())}
}
