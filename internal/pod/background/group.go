// Package background runs the work of a pod manager that no call waits for: reactions to events of the keeper, removals
// that are tried again, calls of plugins.
package background

import "sync"

// Group is the goroutines of one manager. A manager ends while calls of its clients may still run, and these may start
// work at that moment. A sync.WaitGroup alone allows that only as long as it is not waited for: it panics otherwise.
// The zero Group is ready for use.
type Group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go runs work in a goroutine of its own. Once Close has been called, it does nothing: what work was to do is then left
// to the next berthd, which compares the records with what runs.
func (g *Group) Go(work func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Go(work)
	}
}

// Close waits until all work has ended. The caller tells the work to end before, by its context.
func (g *Group) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}
