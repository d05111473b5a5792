package stream

import "sync/atomic"

const (
	// connectionMost bounds what one connection holds of what its client has sent and nobody has taken yet, in bytes.
	connectionMost = 4 << 20
	// connectionLeast is what a connection may hold however much others do.
	connectionLeast = 64 << 10
	// allMost bounds what all connections together hold beyond their connectionLeast.
	allMost = 128 << 20
)

// budget is what all connections of a server may have together beyond what each may always have.
type budget struct{ free atomic.Int64 }

func newBudget(n int64) *budget {
	b := &budget{}
	b.free.Store(n)
	return b
}

func (b *budget) take(n int64) bool {
	if b.free.Add(-n) < 0 {
		b.free.Add(n)
		return false
	}
	return true
}

// share is what one connection has. Its methods are called with a lock held.
type share struct {
	of          *budget
	least, most int64 // what the connection may always have, and may have if the budget has it
	held        int64
}

// take says whether the connection may have n more. While n is at most least, it has something where it may not: what
// it gives back makes room for the next. What others give back it finds when it tries again.
func (s *share) take(n int64) bool {
	if s.held+n > s.most {
		return false
	}
	if more := s.borrowed(s.held+n) - s.borrowed(s.held); more > 0 && !s.of.take(more) {
		return false
	}
	s.held += n
	return true
}

func (s *share) give(n int64) {
	s.of.free.Add(s.borrowed(s.held) - s.borrowed(s.held-n))
	s.held -= n
}

// borrowed is the part of what a connection has that counts for the budget.
func (s *share) borrowed(held int64) int64 { return max(0, held-s.least) }
