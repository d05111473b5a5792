package logpump

import "sync/atomic"

// Totals are what the pumps of this process have done, of all logs.
type Totals struct {
	Bytes   uint64 // of records that were written
	Cut     uint64 // records that ended in the middle of a line, since it was too long
	Dropped uint64 // bytes of records that could not be written
}

var totals struct{ bytes, cut, dropped atomic.Uint64 }

// Total is what there has been so far.
func Total() Totals {
	return Totals{Bytes: totals.bytes.Load(), Cut: totals.cut.Load(), Dropped: totals.dropped.Load()}
}
