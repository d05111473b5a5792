package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/pod/record"
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

// TestAnExecWhoseContainersRecordHasNoProcess inherits from the container's specification, and is refused where that
// cannot be read. Seen to fail with a panic where the record alone was asked.
func TestAnExecWhoseContainersRecordHasNoProcess(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	_, c := n.index.ByID(id)
	if err := c.Update(record.Save, func(r *record.Container) { r.Process = nil }); err != nil {
		t.Fatal(err)
	}
	if out, _, _, err := n.ExecSync(t.Context(), id, []string{"a", "0"}, 0); err != nil || string(out) != "[a 0]\n" {
		t.Errorf("with its specification: %q, %v", out, err)
	}
	if err := os.WriteFile(filepath.Join(n.dirs.Containers(), id, "spec.json"), []byte("spoilt"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := n.ExecSync(t.Context(), id, []string{"a", "0"}, 0)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "inherits") {
		t.Errorf("without: %v", err)
	}
}
