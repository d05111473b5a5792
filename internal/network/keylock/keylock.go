// Package keylock has a set of locks, one for each key in use.
package keylock

import "sync"

// Lock lets one holder in for each key. A key costs nothing while nobody holds it. The zero Lock is ready.
type Lock struct {
	mu   sync.Mutex
	keys map[string]*holders
}

type holders struct {
	sync.Mutex
	n int // who holds it or waits; guarded by Lock.mu
}

// Lock waits for the key and returns what lets it go.
func (l *Lock) Lock(key string) (unlock func()) {
	l.mu.Lock()
	h := l.join(key)
	l.mu.Unlock()
	h.Lock()
	return l.unlock(key, h)
}

// TryLock is Lock that does not wait: ok is false where somebody holds the key.
func (l *Lock) TryLock(key string) (unlock func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys[key] != nil {
		return nil, false
	}
	h := l.join(key)
	h.Lock() // nobody else knows it
	return l.unlock(key, h), true
}

// join adds a holder of a key. l is locked.
func (l *Lock) join(key string) *holders {
	if l.keys == nil {
		l.keys = map[string]*holders{}
	}
	h := l.keys[key]
	if h == nil {
		h = &holders{}
		l.keys[key] = h
	}
	h.n++
	return h
}

func (l *Lock) unlock(key string, h *holders) func() {
	return func() {
		h.Unlock()
		l.mu.Lock()
		if h.n--; h.n == 0 {
			delete(l.keys, key)
		}
		l.mu.Unlock()
	}
}
