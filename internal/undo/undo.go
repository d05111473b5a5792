// Package undo makes the context for the undo of a failed call. The client may have cancelled the call's own context,
// but what the call has made still has to be removed. The new context has a deadline of its own.
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
