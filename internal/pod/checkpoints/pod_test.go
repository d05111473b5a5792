package checkpoints

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/asroot"
	"berth/internal/checkpoint"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// writingKeeper writes a file for each container.
type writingKeeper struct {
	fails bool // at the second container
	count int
}

func (k *writingKeeper) Freeze(context.Context, string, time.Duration) (string, func(context.Context) error, error) {
	return "nonce", func(context.Context) error { return nil }, nil
}

func (k *writingKeeper) Checkpoint(_ context.Context, r *keeper.CheckpointRequest) (func(context.Context) error,
	error) {
	if k.count++; k.fails && k.count > 1 {
		return nil, errors.New("boom")
	}
	if err := os.MkdirAll(r.Images, 0o700); err != nil {
		return nil, err
	}
	return func(context.Context) error { return nil }, os.WriteFile(filepath.Join(r.Images, "pages-1.img"), nil, 0o600)
}

// members makes containers for the checkpoint of a pod, whose records have two files.
func (k *Checkpointer) members(t *testing.T, ids ...string) (list []*Member) {
	t.Helper()
	for _, id := range ids {
		c := k.Containers.New(id, record.Container{
			ID: id, SandboxID: "pod", Phase: record.ContainerRunning, Config: &model.ContainerConfig{},
		})
		err := errors.Join(os.MkdirAll(rootfs.Upper(k.Containers.Path(id)), 0o700),
			c.Update(record.Repair, func(*record.Container) {}))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &Member{Container: c, LoadSpec: func() (*specs.Spec, error) { return &specs.Spec{}, nil }})
	}
	return list
}

// loadSpared reads the record of a container whose newest file is damaged.
func (k *Checkpointer) loadSpared(t *testing.T, id string) *record.ContainerEntry {
	t.Helper()
	if err := os.WriteFile(filepath.Join(k.Containers.Path(id), "container.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, _, spared, err := record.NewContainers(k.Containers.Dir(), nil, k.Log).Load()
	if err != nil || len(spared) != 1 || entries[id] == nil {
		t.Fatalf("read are %v, from the second file %v: %v", entries, spared, err)
	}
	return entries[id]
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// TestAFinishedCheckpointStaysWhateverAnOlderRecordSays: the second file of a record still says that the checkpoint is
// being written. Nor does that record touch a later checkpoint in the same directory. Seen to fail, with nothing left
// of the checkpoint, where the record alone decided.
func TestAFinishedCheckpointStaysWhateverAnOlderRecordSays(t *testing.T) {
	asroot.Need(t, "a directory of root's")
	k, dir := newCheckpointer(t), t.TempDir()
	k.Keeper = &writingKeeper{}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := k.Pod(t.Context(), &model.SandboxMetadata{}, k.members(t, "a", "b"), dir); err != nil {
		t.Fatal(err)
	}
	const all = "container-0 container-1 " + checkpoint.PodFile
	old := k.loadSpared(t, "a")
	if r := old.Record(); r.CheckpointPod == "" || r.CheckpointTemp == "" {
		t.Fatalf("the second file does not name the checkpoint: %+v", r)
	}
	before := old.Record()
	if err := k.Clean(old); err != nil || names(t, dir) != all || old.Record().CheckpointPod != "" {
		t.Errorf("left are %s, %v", names(t, dir), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "container-0", checkpoint.ImagesDir, "pages-1.img")); err != nil {
		t.Error(err)
	}
	// The client removes it, and has another one written there, which is not finished yet.
	if err := os.WriteFile(filepath.Join(dir, unfinished+"other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.RemoveParts(&before); err != nil || names(t, dir) != unfinished+"other "+all {
		t.Errorf("of a later one is left %s, %v", names(t, dir), err)
	}
}

// TestACheckpointOfAPodThatFailsLeavesAnEmptyDirectory, so that another can be written there.
func TestACheckpointOfAPodThatFailsLeavesAnEmptyDirectory(t *testing.T) {
	asroot.Need(t, "a directory of root's")
	k, dir := newCheckpointer(t), t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	list := k.members(t, "a", "b")
	for _, fails := range []bool{true, false} {
		k.Keeper = &writingKeeper{fails: fails}
		err := k.Pod(t.Context(), &model.SandboxMetadata{}, list, dir)
		if (err != nil) != fails || (names(t, dir) == "") != fails {
			t.Errorf("fails %v: %v, and there is %q", fails, err, names(t, dir))
		}
		for _, m := range list {
			if r := m.Container.Record(); r.CheckpointTemp != "" || r.CheckpointPod != "" || r.CheckpointMark != "" {
				t.Errorf("fails %v: on record is %+v", fails, r)
			}
		}
	}
}
