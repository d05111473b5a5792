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
	if l.keys == nil {
		l.keys = map[string]*holders{}
	}
	h := l.keys[key]
	if h == nil {
		h = &holders{}
		l.keys[key] = h
	}
	h.n++
	l.mu.Unlock()
	h.Lock()
	return func() {
		h.Unlock()
		l.mu.Lock()
		if h.n--; h.n == 0 {
			delete(l.keys, key)
		}
		l.mu.Unlock()
	}
}
