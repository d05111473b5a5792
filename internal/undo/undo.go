// Package undo gives the undo of a failed call a context of its own, with a deadline: the client may have cancelled
// the call by then, and what was made for it has to be removed all the same.
package undo

import (
	"context"
	"time"
)

// Timeout bounds the undo of what has failed. What is not undone by then stays on record, and is removed by the next
// removal or the next start of berthd.
const Timeout = 30 * time.Second

// Context is the context of an undo: it has the values of the call's, and not its end. It ends after Timeout, or with
// the returned function, which has to be called.
func Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), Timeout)
}
