package libcontainer

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// frozen is a container that is frozen for a checkpoint.
type frozen struct {
	runtime.Container
	guard  *runtime.Guard
	loaded any
	thawed chan struct{}
	before int // how often it is looked at before it is frozen
}

func (f *frozen) Guard() *runtime.Guard { return f.guard }
func (f *frozen) Loaded() *any          { return &f.loaded }
func (f *frozen) Thawed() <-chan struct{} {
	if f.before > 0 {
		f.before--
		return nil
	}
	return f.thawed
}

// TestAnExecThatIsEndedDuringACheckpoint: it does not wait until the container is thawed, which may take minutes. Seen
// to fail where the guard is waited for, which CRIU has, and without the second look at what freezes the container.
func TestAnExecThatIsEndedDuringACheckpoint(t *testing.T) {
	for what, before := range map[string]int{"CRIU writes": 0, "the checkpoint begins meanwhile": 1} {
		t.Run(what, func(t *testing.T) {
			c := &frozen{loaded: &libcontainer.Container{}, thawed: make(chan struct{}), before: before,
				guard: runtime.NewGuard()}
			if before == 0 {
				if err := c.guard.Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer c.guard.Unlock()
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			ended := make(chan error, 1)
			go func() {
				ended <- (&Engine{}).withoutCheckpoint(ctx, c, func(*libcontainer.Container) error {
					return errors.New("it was started in a frozen container")
				})
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, stage.ErrInterrupted) {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("it waits")
				close(c.thawed)
			}
		})
	}
}

// TestAnUpdateBesideAnExecThatIsSetUpForEver: it ends with its context, and says what it waited for, as do all that
// lock the guard. Seen to fail where an update has no context: it waits for as long as the exec does.
func TestAnUpdateBesideAnExecThatIsSetUpForEver(t *testing.T) {
	c := &frozen{guard: runtime.NewGuard()}
	if err := c.guard.Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := &Engine{}
	for what, call := range map[string]func(ctx context.Context) error{
		"update":  func(ctx context.Context) error { return e.Update(ctx, c, &specs.LinuxResources{}) },
		"pause":   func(ctx context.Context) error { return e.Pause(ctx, c) },
		"resume":  func(ctx context.Context) error { return e.Resume(ctx, c) },
		"freeze":  func(ctx context.Context) error { return e.Freeze(ctx, c) },
		"removal": func(ctx context.Context) error { return e.Destroy(ctx, c) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "exec is being set up") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s waits", what)
		}
		cancel()
	}
}

// A criu that reads the file while another call writes it must find all settings. Seen to fail with os.WriteFile, which
// empties the file first.
func TestTheSettingsOfCRIUAreReplacedAsAWhole(t *testing.T) {
	e := &Engine{dir: runtime.Dir(t.TempDir())}
	const old = "tcp-close\n"
	if err := os.WriteFile(e.dir.CRIUConfig(), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(e.dir.CRIUConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := e.writeCRIUSettings(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(reader); err != nil || string(b) != old {
		t.Errorf("who had opened the file before reads %q, %v", b, err)
	}
	if b, err := os.ReadFile(e.dir.CRIUConfig()); err != nil || string(b) != criuSettings {
		t.Errorf("the settings are %q, %v", b, err)
	}
}
