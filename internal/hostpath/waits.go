package hostpath

import (
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
)

const (
	// maxOfOne bounds the children that wait for one file system. Those that had begun when it was reached wait on, and
	// count for their own file system only.
	maxOfOne = 4
	// maxStuck bounds the children that wait for all file systems together.
	maxStuck = 32
)

// waits are the children that do not come back from a file system, and which their callers have given up.
type waits struct {
	mu      sync.Mutex
	paths   map[string]int // by path
	systems map[string]int // by the device of the file system, as approach names it; empty: the child has not said
}

// admit tells whether one more child may look at a path, and which file systems it must not ask for anything. A path
// for which a child waits already is errdefs.ErrUnavailable. If too many file systems do not answer, the error is
// errdefs.ErrResourceExhausted: nothing is wrong with that of the path.
func (w *waits) admit(path string) (mute []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paths[path] > 0 {
		return nil, unanswered(path)
	}
	counted := 0
	for system, n := range w.systems {
		counted += min(n, maxOfOne)
		if n >= maxOfOne && system != "" {
			mute = append(mute, system)
		}
	}
	if counted >= maxStuck {
		return nil, fmt.Errorf("look at %s: %d other paths do not answer: %w", path, len(w.paths),
			errdefs.ErrResourceExhausted)
	}
	slices.Sort(mute)
	return mute, nil
}

// give notes that so many more children, or fewer, wait for a path on a file system.
func (w *waits) give(path, system string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paths == nil {
		w.paths, w.systems = map[string]int{}, map[string]int{}
	}
	if w.paths[path] += n; w.paths[path] == 0 {
		delete(w.paths, path)
	}
	if w.systems[system] += n; w.systems[system] == 0 {
		delete(w.systems, system)
	}
}
