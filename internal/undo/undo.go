// Package undo bounds what is undone after something has failed: the client of a call may have gone by then, and what
// was made for it goes all the same.
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
