package undo

import (
	"context"
	"testing"
	"time"
)

type key struct{}

// TestAnUndoOutlivesItsClient, with what the call's context carries, and not for ever.
func TestAnUndoOutlivesItsClient(t *testing.T) {
	client, gone := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
	gone()
	ctx, cancel := Context(client)
	defer cancel()
	if ctx.Err() != nil || ctx.Value(key{}) != "trace" {
		t.Errorf("it has ended (%v), and carries %v", ctx.Err(), ctx.Value(key{}))
	}
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > Timeout {
		t.Errorf("it ends at %v", end)
	}
}
