package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// profiles counts for which AppArmor profiles it was asked, and fails if it has an error.
type profiles struct {
	asked []string
	err   error
}

func (p *profiles) Ensure(_ context.Context, profile string) error {
	p.asked = append(p.asked, profile)
	return p.err
}

// TestTheAppArmorProfileIsLookedForBeforeAProcessBegins: before the start of a container and before an exec. A profile
// that cannot be loaded again keeps either from beginning.
func TestTheAppArmorProfileIsLookedForBeforeAProcessBegins(t *testing.T) {
	n := newMemoryNode(t)
	_, id := n.run()
	_, c := n.index.ByID(id)
	err := c.Update(record.Save, func(r *record.Container) { r.Process.ApparmorProfile = "berth-default" })
	if err != nil {
		t.Fatal(err)
	}
	p := &profiles{}
	n.cfg.AppArmor = p
	n.restart()
	if _, _, _, err := n.ExecSync(t.Context(), id, []string{"a"}, 0); err != nil {
		t.Fatal(err)
	}
	if want := []string{"berth-default"}; !slices.Equal(p.asked, want) {
		t.Errorf("for an exec it was asked for %q, want %q", p.asked, want)
	}
	config := podConfig()
	config.Metadata.Attempt++
	pod, err := n.RunSandbox(t.Context(), config, "")
	if err != nil {
		t.Fatal(err)
	}
	created, err := n.CreateContainer(t.Context(), pod, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	_, c = n.index.ByID(created)
	spec, err := c.LoadSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.ApparmorProfile = "berth-start"
	if err := c.SaveSpec(spec); err != nil {
		t.Fatal(err)
	}
	p.err = errFault
	if err := n.StartContainer(t.Context(), created); !errors.Is(err, errFault) {
		t.Errorf("a start whose profile cannot be loaded: %v", err)
	}
	if _, _, _, err := n.ExecSync(t.Context(), id, []string{"a"}, 0); !errors.Is(err, errFault) {
		t.Errorf("an exec whose profile cannot be loaded: %v", err)
	}
	if want := []string{"berth-default", "berth-start", "berth-default"}; !slices.Equal(p.asked, want) {
		t.Errorf("it was asked for %q, want %q", p.asked, want)
	}
}
