package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath/mutetest"
	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/logs"
	"berth/internal/pod/record"
)

// statusKeeper tells one answer after the other.
type statusKeeper struct {
	Keeper
	answers []any // a state, or an error
}

func (k *statusKeeper) Status(context.Context, string) (*keeper.Status, error) {
	next := k.answers[0]
	k.answers = k.answers[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return &keeper.Status{State: next.(keeper.State)}, nil
}

// A container that the keeper still starts when berthd comes is neither running nor lost: berthd waits until that is
// decided. It took the container for one that runs, while the keeper refused execs since it was starting: so the first
// case fails without the wait.
func TestStartUnderWayIsAwaited(t *testing.T) {
	missing := fmt.Errorf("container: %w", errdefs.ErrNotFound)
	for _, c := range []struct {
		name    string
		answers []any
		want    keeper.State
		unknown bool
	}{
		{name: "it begins", answers: []any{keeper.StateStarting, keeper.StateStarting, keeper.StateRunning},
			want: keeper.StateRunning},
		{name: "it has ended by then", answers: []any{keeper.StateStarting, keeper.StateExited}, want: keeper.StateExited},
		{name: "it fails", answers: []any{keeper.StateStarting, missing}},
		{name: "the keeper does not tell", answers: []any{errors.New("broken")}, unknown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rc := &Recovery{Keeper: &statusKeeper{answers: c.answers}, Log: slog.New(slog.DiscardHandler)}
			status, known := rc.startDecided(t.Context(), "a", &keeper.Status{State: keeper.StateStarting}, time.Minute)
			if known == c.unknown {
				t.Errorf("known: %v", known)
			}
			if status == nil && c.want != "" || status != nil && status.State != c.want {
				t.Errorf("status %+v, want %q", status, c.want)
			}
		})
	}
}

// noImages is a store that has lost its images.
type noImages struct{ collected bool }

func (s *noImages) AddReference(image, _ string) (*image.Layers, error) {
	return nil, errdefs.ErrNotFound
}

func (s *noImages) Collect(context.Context) error {
	s.collected = true
	return nil
}

// TestLayersStayWhileAContainerHasAnImageThatIsLost: its layers are not known, and may be those that nobody seems to
// need. An ended container needs none. It was seen to fail where the failed reference is no more than a warning.
func TestLayersStayWhileAContainerHasAnImageThatIsLost(t *testing.T) {
	for phase, collects := range map[record.ContainerPhase]bool{
		record.ContainerRunning: false, record.ContainerCreated: false, record.ContainerExited: true,
	} {
		t.Run(string(phase), func(t *testing.T) {
			log, dir, store := slog.New(slog.DiscardHandler), t.TempDir(), &noImages{}
			dirOf := func(string) string { return dir }
			rc := &Recovery{Index: index.New(), Images: store, Log: log, Ctx: t.Context(),
				Containers: record.NewContainers(filepath.Join(dir, "containers"), nil, log)}
			pod := record.NewSandboxes(filepath.Join(dir, "pods"), dirOf, log).New("pod",
				record.Sandbox{ID: "pod", Config: &model.SandboxConfig{}})
			rc.Index.AdoptSandbox(index.NewSandbox(pod))
			c := record.Container{ID: "c", SandboxID: "pod", ImageID: "sha256:lost", Config: &model.ContainerConfig{}}
			err := rc.Containers.New("c", c).Update(record.Repair, func(r *record.Container) { r.Phase = phase })
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := rc.loadContainers(); err != nil {
				t.Fatal(err)
			}
			rc.collectImages()
			if store.collected {
				t.Error("layers are collected before berthd serves")
			}
			for _, work := range rc.Unfinished {
				work()
			}
			if store.collected != collects {
				t.Errorf("layers are collected: %v", store.collected)
			}
		})
	}
}

func (k *statusKeeper) EndCheckpoint(context.Context, string) error { return nil }

// What is left of a checkpoint may be on a file system that does not answer, and is removed once berthd serves. Until
// then no checkpoint of a pod is written to its directory. Seen to fail with Clean called by endCheckpoint itself, and
// without the call of Hold.
func TestWhatIsLeftOfACheckpointIsRemovedOnceBerthdServes(t *testing.T) {
	for what, gone := range map[string]bool{"of a container": false, "of one that is removed meanwhile": true} {
		t.Run(what, func(t *testing.T) {
			log, dir := slog.New(slog.DiscardHandler), t.TempDir()
			containers := record.NewContainers(filepath.Join(dir, "containers"), nil, log)
			rc := &Recovery{Index: index.New(), Keeper: &statusKeeper{}, Log: log, Ctx: t.Context(), Containers: containers,
				Checkpoints: &checkpoints.Checkpointer{Containers: containers, Log: log}}
			pod := index.NewSandbox(record.NewSandboxes(filepath.Join(dir, "pods"), func(string) string { return dir }, log).
				New("pod", record.Sandbox{ID: "pod", Config: &model.SandboxConfig{}}))
			output := filepath.Join(dir, "output")
			temp, mark := filepath.Join(output, "container-0"), filepath.Join(output, "mark")
			entry := containers.New("c", record.Container{ID: "c", SandboxID: "pod", Config: &model.ContainerConfig{},
				Phase: record.ContainerRunning, CheckpointTemp: temp, CheckpointPod: filepath.Join(output, "pod.json"),
				CheckpointMark: mark})
			c := index.NewContainer(entry, pod)
			if err := errors.Join(os.MkdirAll(temp, 0o700), os.WriteFile(mark, nil, 0o600),
				entry.Update(record.Repair, func(*record.Container) {})); err != nil {
				t.Fatal(err)
			}
			if rc.Index.AdoptSandbox(pod); !gone {
				rc.Index.AdoptContainer(c)
			}
			rc.endCheckpoint(t.Context(), c)
			if _, err := os.Stat(temp); err != nil {
				t.Fatalf("it was looked for before berthd serves: %v", err)
			}
			free, alone := rc.Checkpoints.Hold(output)
			if free(); alone {
				t.Error("another checkpoint can be written to the directory")
			}
			for _, work := range rc.Unfinished {
				work()
			}
			if _, err := os.Stat(temp); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is there: %v", err)
			}
			if free, alone = rc.Checkpoints.Hold(output); !alone {
				t.Error("no other checkpoint can be written to the directory")
			}
			free()
			if left := c.Record().CheckpointTemp; !gone && left != "" {
				t.Errorf("on record is still %s", left)
			}
		})
	}
}

// A log may be on a file system that does not answer. What berthd does before it serves does not ask that, also for a
// container that an earlier version has started; once berthd serves, it finds out where the logs of such containers
// are.
func TestLogsAreAdoptedWithoutTheirFileSystem(t *testing.T) {
	log, dir := slog.New(slog.DiscardHandler), t.TempDir()
	mute := mutetest.Mount(t, t.TempDir())
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "real"), 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	rc := &Recovery{Index: index.New(), Log: log, Ctx: t.Context(), Logs: logs.New(dir)}
	pod := index.NewSandbox(record.NewSandboxes(filepath.Join(dir, "pods"), func(string) string { return dir }, log).
		New("pod", record.Sandbox{ID: "pod", Config: &model.SandboxConfig{}}))
	rc.Index.AdoptSandbox(pod)
	containers := record.NewContainers(filepath.Join(dir, "containers"), nil, log)
	running := func(id, path, file string) *index.Container {
		c := index.NewContainer(containers.New(id, record.Container{ID: id, SandboxID: "pod",
			Config: &model.ContainerConfig{}, Phase: record.ContainerRunning, LogPath: path, LogFile: file}), pod)
		rc.Index.AdoptContainer(c)
		return c
	}
	mutePath, linkPath := filepath.Join(mute.Dir, "a/0.log"), filepath.Join(link, "0.log")
	all := []*index.Container{
		running("now", filepath.Join(mute.Dir, "b/0.log"), filepath.Join(mute.Dir, "c/0.log")),
		running("earlier", mutePath, ""), running("linked", linkPath, ""), running("none", "", ""),
	}
	mute.Mute()
	for _, c := range all {
		rc.adoptLog(c)
	}
	if mute.Waits() {
		t.Error("a file system that does not answer is asked before berthd serves")
	}
	rc.resolveLogs()
	mute.End()
	for path, writer := range map[string]string{
		filepath.Join(mute.Dir, "c/0.log"): "now", mutePath: "earlier", filepath.Join(dir, "real/0.log"): "linked",
	} {
		_, err := rc.Logs.Claim("another", path)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), writer) {
			t.Errorf("the log of %s is claimed: %v", writer, err)
		}
	}
}
