package gate

import "sync"

// Tasks counts what is under way. Unlike with a sync.WaitGroup, something may begin while somebody waits until nothing
// is left, and who waits may give up.
type Tasks struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when nothing is left; nil: nobody waits
}

// Begin counts a task that begins. End is called when it is over.
func (t *Tasks) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

// End is called when a task is over.
func (t *Tasks) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n < 0 {
		panic("gate: a task has ended that has not begun")
	}
	if t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Go runs a task in a goroutine.
func (t *Tasks) Go(task func()) {
	t.Begin()
	go func() {
		defer t.End()
		task()
	}()
}

// Idle returns a channel that is closed as soon as nothing is under way.
func (t *Tasks) Idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle
	if idle == nil {
		idle = make(chan struct{})
		if t.n == 0 {
			close(idle)
		} else {
			t.idle = idle
		}
	}
	return idle
}

// Wait returns when nothing is under way.
func (t *Tasks) Wait() { <-t.Idle() }
