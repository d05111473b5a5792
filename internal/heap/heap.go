// Package heap gives memory back that a burst of work has left behind. Go's runtime collects garbage when the heap has
// doubled, or after two minutes, and returns free memory to the kernel slowly. berthd and the keeper work for some
// milliseconds and then wait, so what a burst of starts allocates would stay theirs for minutes.
package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// pause is how often it is looked whether the program is at rest.
	pause = 10 * time.Second
	// rest is how many bytes a program at rest allocates at most in a pause. Calls that come all the time, such as exec
	// probes of a node's pods, allocate more: memory that is returned would be needed again at once.
	rest = 1 << 20
	// worth is how many bytes it has to have allocated since the last time: a collection takes some milliseconds.
	worth = 4 << 20
	// With many pods, what berthd looks at every ten seconds allocates more than rest, and a collection takes longer. So
	// both are at least these parts of the heap. Else a node with a thousand pods never gives anything back.
	restPart, worthPart = 1.0 / 8, 1.0 / 2
)

// ReturnAtRest returns memory whenever the program has come to rest, until ctx ends.
func ReturnAtRest(ctx context.Context) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var w watch
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		metrics.Read(sample)
		if w.due(sample[0].Value.Uint64(), sample[1].Value.Uint64()) {
			runtime.GC() // what a sync.Pool holds is garbage for the second collection only
			debug.FreeOSMemory()
		}
	}
}

// watch has how many bytes had been allocated, since the program began, at two moments.
type watch struct{ before, returned uint64 }

// due is told how many bytes have been allocated so far, and how many of them the heap has, once in a pause.
func (w *watch) due(allocated, has uint64) bool {
	recent := allocated - w.before
	w.before = allocated
	if recent > max(rest, uint64(restPart*float64(has))) ||
		allocated-w.returned < max(worth, uint64(worthPart*float64(has))) {
		return false
	}
	w.returned = allocated
	return true
}
