package daemon

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"
)

// withdrawn are the nonces of calls whose caller no longer waits and has ended what they start. The keeper handles
// calls at the same time, so it may read such a call after the one that ends it. It refuses the call then.
//
// A nonce is added before the container or exec is looked for in its table, and checked with the lock of that table,
// which stays locked until the container or exec is in it. So one of the two calls sees the other.
type withdrawn struct {
	mu     sync.Mutex
	nonces map[string]time.Time // when each was added
}

// withdrawnKnown is how long a nonce is known: longer than a call can take from its client to the keeper.
const withdrawnKnown = 10 * time.Minute

func (w *withdrawn) add(nonces ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, nonce := range nonces {
		if nonce == "" {
			continue
		}
		if w.nonces == nil {
			w.nonces = map[string]time.Time{}
		}
		w.nonces[nonce] = now
	}
	maps.DeleteFunc(w.nonces, func(_ string, at time.Time) bool { return now.Sub(at) > withdrawnKnown })
}

// check is an error if the call with this nonce is not to be made.
func (w *withdrawn) check(nonce string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.nonces[nonce]; ok {
		return fmt.Errorf("its caller has ended it before it began: %w", context.Canceled)
	}
	return nil
}
