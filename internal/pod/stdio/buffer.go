package stdio

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxSyncOutput is how much of each stream ExecSync keeps; the rest is read and dropped, as the CRI asks.
	maxSyncOutput = 16 << 20
	// leastSyncOutput is what is kept however much others keep, and allSyncOutput what all keep together beyond that. One
	// pod can have hundreds of probes, whose commands write as much as they like for as long as they may run.
	leastSyncOutput = 64 << 10
	allSyncOutput   = 64 << 20

	// leastPiece and mostPiece are the sizes of the arrays that an output is kept in while it is written.
	leastPiece, mostPiece = 64 << 10, 1 << 20

	// collectPause is the least time between two collections of garbage that a lack of room leads to, and cleanupWait how
	// long one of them may take to give the room back.
	collectPause = 50 * time.Millisecond
	cleanupWait  = 50 * time.Millisecond
)

// Shared is the memory that all Buffers have together. An answer is in memory until its client has read it, long after
// the call has ended for everybody but gRPC. So the room of an output that was handed out is free again when Go's
// runtime has found that nobody has it any more. The methods of Shared may be called concurrently.
type Shared struct {
	taken       atomic.Int64
	collections atomic.Int64
	collecting  sync.Mutex // held while garbage is collected; guards last
	last        time.Time
	joining     sync.Mutex // held while the pieces of an output are put together
}

func (s *Shared) take(n int) bool {
	if s.taken.Add(int64(n)) > allSyncOutput {
		s.taken.Add(-int64(n))
		return false
	}
	return true
}

// room takes n bytes, also those that only garbage has.
func (s *Shared) room(n int) bool { return s.take(n) || s.collect(n) }

// exact makes an empty array of n bytes in the place of arrays that have taken room, whose owner drops them.
func (s *Shared) exact(n, taken int) []byte {
	s.taken.Add(int64(n - taken))
	made := make([]byte, n)
	runtime.AddCleanup(&made[0], func(n int) { s.taken.Add(-int64(n)) }, n)
	return made[:0]
}

// collect takes room that only garbage has. Those who come while it works are content with what it has found.
func (s *Shared) collect(n int) bool {
	before := s.collections.Load()
	s.collecting.Lock()
	defer s.collecting.Unlock()
	if s.collections.Load() != before {
		return s.take(n)
	}
	time.Sleep(collectPause - time.Since(s.last)) // a container that writes much must not keep the processor busy
	runtime.GC()
	s.last = time.Now()
	s.collections.Add(1)
	for !s.take(n) {
		if time.Since(s.last) > cleanupWait {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// Buffer keeps the first bytes that are written to it: maxSyncOutput, or less if others keep much.
type Buffer struct {
	Of *Shared

	mu     sync.Mutex // guards what is below: what copies may outlive the call
	data   []byte     // the beginning: up to leastSyncOutput, which is not counted, or what Bytes has returned
	pieces [][]byte   // what follows; nobody else has them
	size   int        // of all
	taken  int        // of Shared, by the pieces
	full   bool       // what comes is dropped
	cut    bool       // since others keep much
}

// Write keeps what there is room for, and never fails.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full {
		return len(p), nil
	}
	left := p[:min(len(p), maxSyncOutput-l.size)]
	if len(l.pieces) == 0 && l.size < leastSyncOutput {
		n := min(len(left), leastSyncOutput-l.size)
		l.data, left = append(l.data, left[:n]...), left[n:]
		l.size += n
	}
	for len(left) > 0 {
		last := len(l.pieces) - 1
		if last < 0 || len(l.pieces[last]) == cap(l.pieces[last]) {
			n := min(max(l.size, leastPiece), mostPiece, maxSyncOutput-l.size)
			if !l.Of.room(n) {
				l.full, l.cut = true, true
				break
			}
			l.taken += n
			l.pieces = append(l.pieces, make([]byte, 0, n))
			last++
		}
		piece := &l.pieces[last]
		n := min(len(left), cap(*piece)-len(*piece))
		*piece, left = append(*piece, left[:n]...), left[n:]
		l.size += n
	}
	return len(p), nil
}

// Release drops what is kept, and what comes from then on. Who has it from Bytes still has it.
func (l *Buffer) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Of.taken.Add(-int64(l.taken))
	l.data, l.pieces, l.size, l.taken, l.full = nil, nil, 0, 0, true
}

// Cut tells whether something was dropped because others keep much.
func (l *Buffer) Cut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// Bytes is what was kept, in an array that is no larger.
func (l *Buffer) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pieces) == 0 {
		return l.data
	}
	// One output at a time is in memory twice.
	l.Of.joining.Lock()
	defer l.Of.joining.Unlock()
	all := append(l.Of.exact(l.size, l.taken), l.data...)
	for _, piece := range l.pieces {
		all = append(all, piece...)
	}
	l.data, l.pieces, l.taken = all, nil, 0
	return all
}
