package manifest

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// RestartLimit is how often containers of a Job's pods are started again, in all pods that run together. A Job's
// controller counts in the same way: restarts in pods that have ended do not count.
type RestartLimit struct {
	Most   int
	mu     sync.Mutex // guards counts
	counts map[types.UID]int
}

// Begin notes that a pod runs, and how often its containers were started again before.
func (l *RestartLimit) Begin(pod types.UID, restarts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[types.UID]int{}
	}
	l.counts[pod] = restarts
}

// Take counts one more restart in a pod that runs. It returns false where there have been as many as there may be.
func (l *RestartLimit) Take(pod types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := 0
	for _, n := range l.counts {
		all += n
	}
	if all >= l.Most {
		return false
	}
	l.counts[pod]++
	return true
}

// End notes that a pod does not run any more.
func (l *RestartLimit) End(pod types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.counts, pod)
}
