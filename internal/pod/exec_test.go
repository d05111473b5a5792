package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	keeper "berth/internal/keeper/client"
)

// earlyKeeper waits for no command, and answers before its caller's deadline that it is over.
type earlyKeeper struct {
	memoryKeeper
	kills atomic.Int32
}

func (k *earlyKeeper) WaitExec(ctx context.Context, _, _ string) (*keeper.ExecExit, error) {
	if _, limited := ctx.Deadline(); !limited {
		return nil, errFault
	}
	return nil, fmt.Errorf("wait: %w", context.DeadlineExceeded)
}

func (k *earlyKeeper) KillExec(context.Context, string, string) error {
	k.kills.Add(1)
	return nil
}

// TestAnExecTimesOutThoughTheKeeperSaysSoFirst was seen to fail when only berthd's own clock counted: the command was
// killed once more, and the error was not that of a timeout.
func TestAnExecTimesOutThoughTheKeeperSaysSoFirst(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	k := &earlyKeeper{memoryKeeper: memoryKeeper{n.host}}
	n.cfg.Keeper = k
	n.restart()
	_, _, _, err := n.ExecSync(t.Context(), id, []string{"sleep", "x"}, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timed out after 1m0s") {
		t.Errorf("a command that takes too long: %v", err)
	}
	if got := k.kills.Load(); got != 0 {
		t.Errorf("it was killed %d times more", got)
	}
}
