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

// budget is what all connections of a server may hold together beyond connectionLeast of each.
type budget struct{ free atomic.Int64 }

func newBudget(bytes int64) *budget {
	b := &budget{}
	b.free.Store(bytes)
	return b
}

func (b *budget) take(n int64) bool {
	if b.free.Add(-n) < 0 {
		b.free.Add(n)
		return false
	}
	return true
}

// share is what one connection holds. Its methods are called with the connection's lock held.
type share struct {
	of   *budget
	held int64
}

// take says whether the connection may hold n more bytes, at most connectionLeast at once. If it may not, there is
// something in its queues whose removal makes room: it need not wait for other connections.
func (s *share) take(n int64) bool {
	if s.held+n > connectionMost {
		return false
	}
	if more := borrowed(s.held+n) - borrowed(s.held); more > 0 && !s.of.take(more) {
		return false
	}
	s.held += n
	return true
}

func (s *share) give(n int64) {
	s.of.free.Add(borrowed(s.held) - borrowed(s.held-n))
	s.held -= n
}

// borrowed is the part of what a connection holds that counts for the budget.
func borrowed(held int64) int64 { return max(0, held-connectionLeast) }
