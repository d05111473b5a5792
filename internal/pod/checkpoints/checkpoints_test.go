package checkpoints

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/checkpoint"
	"berth/internal/image"
	"berth/internal/loglimit"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// oneImage is an image store with one image, which is another one by some names.
type oneImage struct {
	model.Image
	named map[string]*model.Image
	held  bool
}

func (s *oneImage) Get(_ context.Context, name string) (*model.Image, error) {
	if img, ok := s.named[name]; ok {
		return img, nil
	}
	return &s.Image, nil
}

func (s *oneImage) AddReference(string, string) (*image.Layers, error) {
	s.held = true
	return &image.Layers{}, nil
}

func (s *oneImage) UnpackTar(context.Context, string, io.Reader) error { return nil }

// A log may be of any size, and its container stands still while it is copied. Seen to fail with io.Copy.
func TestTheCopyOfALogEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "log"), "a line\n")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := copyFile(ctx, filepath.Join(dir, "log"), filepath.Join(dir, "copy"), 0o600)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func newCheckpointer(t *testing.T) *Checkpointer {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	return &Checkpointer{
		Containers: record.NewContainers(t.TempDir(), nil, log), Log: log, Settings: func() Settings { return Settings{} },
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnArchiveGoesToAFreePathInADirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "old.tar"), "")
	if err := os.Symlink("old.tar", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{filepath.Join(dir, "new.tar"), filepath.Join(dir, "old.tar")} {
		if err := CheckLocation(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"new.tar", filepath.Join(dir, "none/new.tar"), dir, filepath.Join(dir, "link")} {
		if err := CheckLocation(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestAnImageThatIsACheckpointIsRestoredWhereTheNodeAllowsIt alone, since CRIU does as root what it says.
func TestAnImageThatIsACheckpointIsRestoredWhereTheNodeAllowsIt(t *testing.T) {
	cfg := &model.ContainerConfig{Image: model.ImageSpec{Image: "web:1"}}
	images := &oneImage{Image: model.Image{ID: "sha256:1"}}
	k := newCheckpointer(t)
	k.Images = images
	if img, re, err := k.Find(t.Context(), cfg, "c"); err != nil || re != nil || img.ID != "sha256:1" || images.held {
		t.Errorf("any other image: %v, %v, held %v: %v", img, re, images.held, err)
	}
	images.Checkpoint = "web"
	var field *model.FieldError
	if _, _, err := k.Find(t.Context(), cfg, "c"); !errdefs.IsFailedPrecondition(err) ||
		!errors.As(err, &field) || images.held {
		t.Errorf("a checkpoint, held %v: %v", images.held, err)
	}
	k.Settings = func() Settings { return Settings{RestoreImages: true} }
	if _, _, err := k.Find(t.Context(), cfg, "c"); !errdefs.IsInvalidArgument(err) || !images.held {
		t.Errorf("one without the layer that it should have, held %v: %v", images.held, err)
	}
}

// TestAnImageIsACheckpointByTheNameThatThePodHas, where the request names it by its ID. Seen to fail with the ID alone.
func TestAnImageIsACheckpointByTheNameThatThePodHas(t *testing.T) {
	k := newCheckpointer(t)
	plain, marked := model.Image{ID: "sha256:1"}, model.Image{ID: "sha256:1", Checkpoint: "web"}
	for what, c := range map[string]struct {
		byID, byName model.Image
		name         string
		want         bool
	}{
		"neither":                      {plain, plain, "web:1", false},
		"both":                         {marked, marked, "web:1", true},
		"by the name":                  {plain, marked, "web:1", true},
		"by another name":              {marked, plain, "web:1", false},
		"no name":                      {marked, plain, "", true},
		"the name is another image's":  {marked, model.Image{ID: "sha256:2"}, "web:1", true},
		"the other one's mark is none": {plain, model.Image{ID: "sha256:2", Checkpoint: "web"}, "web:1", false},
	} {
		k.Images = &oneImage{Image: c.byID, named: map[string]*model.Image{c.name: &c.byName}}
		cfg := &model.ContainerConfig{Image: model.ImageSpec{Image: "sha256:1", UserSpecifiedImage: c.name}}
		if _, _, err := k.Find(t.Context(), cfg, "c"); errdefs.IsFailedPrecondition(err) != c.want || !c.want && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTheLogOfARestoredContainerBeginsWithTheOldOne, unless it has begun, and never through a link.
func TestTheLogOfARestoredContainerBeginsWithTheOldOne(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	r := &record.Container{LogPath: log, Restored: &record.Restored{Dir: filepath.Join(dir, "restore")}}
	if err := ContinueLog(r); err != nil {
		t.Errorf("a checkpoint without a log: %v", err)
	}
	old := filepath.Join(dir, "restore", checkpoint.LogFile)
	write(t, old, "before\n")
	for _, now := range []string{"", "begun\n"} {
		write(t, log, now)
		if err := ContinueLog(r); err != nil {
			t.Fatal(err)
		}
		want := now
		if now == "" {
			want = "before\n"
		}
		if got, err := os.ReadFile(log); err != nil || string(got) != want {
			t.Errorf("the log is %q and not %q (%v)", got, want, err)
		}
	}
	secret := filepath.Join(dir, "secret")
	write(t, secret, "secret")
	if err := errors.Join(os.Remove(old), os.Symlink(secret, old), os.Remove(log)); err != nil {
		t.Fatal(err)
	}
	if err := ContinueLog(r); err == nil {
		t.Error("a log that is a link was copied")
	}
}

// TestOfAnOldLogTheLastLinesAreKept, as many as a file of the container's log may have: the log in a checkpoint may be
// of any size, and fill the file system of the logs. Seen to fail with all of it copied.
func TestOfAnOldLogTheLastLinesAreKept(t *testing.T) {
	long := strings.Repeat("x", 10000)
	for name, c := range map[string]struct {
		old, want string
		most      int64
	}{
		"all of one that has room":        {"a\nb\nc\n", "a\nb\nc\n", 6},
		"without the line that has none":  {"a\nb\nc\n", "b\nc\n", 5},
		"from the beginning of a line on": {"a\nb\nc\n", "b\nc\n", 4},
		"a line that has not ended":       {"a\nb", "b", 2},
		"nothing of a line without end":   {long, "", 5000},
		"after the end of a long line":    {long + "\nb\n", "b\n", 6000},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := &record.Container{LogPath: filepath.Join(dir, "0.log"), LogLimits: loglimit.Limits{MaxSize: c.most},
				Restored: &record.Restored{Dir: filepath.Join(dir, "restore")}}
			write(t, filepath.Join(r.Restored.Dir, checkpoint.LogFile), c.old)
			if err := ContinueLog(r); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(r.LogPath); err != nil || string(got) != c.want {
				t.Errorf("the log is %.20q and not %q (%v)", got, c.want, err)
			}
		})
	}
	dir := t.TempDir()
	r := &record.Container{LogPath: filepath.Join(dir, "0.log"),
		Restored: &record.Restored{Dir: filepath.Join(dir, "restore")}}
	old := filepath.Join(r.Restored.Dir, checkpoint.LogFile)
	write(t, old, "")
	if err := errors.Join(os.Truncate(old, keptLog+1<<20), ContinueLog(r)); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(r.LogPath); err != nil || st.Size() > keptLog {
		t.Errorf("without limits of its own: %d bytes, %v", st.Size(), err)
	}
}

// The record names one checkpoint: what is left of an earlier one is removed before the next is recorded. Seen to fail
// without the call of Clean in Begin.
func TestACheckpointBeginsWithNothingOfTheLast(t *testing.T) {
	k := newCheckpointer(t)
	temp := filepath.Join(t.TempDir(), ".berth-checkpoint-1")
	c := k.Containers.New("c", record.Container{
		ID: "c", Phase: record.ContainerRunning, Config: &model.ContainerConfig{}, CheckpointTemp: temp,
	})
	write(t, filepath.Join(k.Containers.Path("c"), checkpointDir, "images/pages-1.img"), "")
	write(t, temp, "")
	if err := k.Begin(c, temp+"2"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(k.Containers.Path("c"), checkpointDir), temp} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if now := c.Record().CheckpointTemp; now != temp+"2" {
		t.Errorf("on record is %s", now)
	}
}

// berthd may be killed when the records of some containers no longer name their parts of a pod's checkpoint, and those
// of others still do: the checkpoint has failed, and all of it goes. Seen to fail where the description goes alone.
func TestAllOfAPodsCheckpointIsRemovedByTheLastOfItsContainers(t *testing.T) {
	k := newCheckpointer(t)
	dir := t.TempDir()
	pod, mark := filepath.Join(dir, checkpoint.PodFile), filepath.Join(dir, unfinished+"1")
	write(t, pod, "{}")
	write(t, mark, "")
	for i := range 3 {
		write(t, filepath.Join(dir, checkpoint.ContainerDir(i), "checkpoint/pages-1.img"), "")
	}
	write(t, filepath.Join(dir, "container-x", "file"), "")
	c := k.Containers.New("c", record.Container{
		ID: "c", Phase: record.ContainerRunning, Config: &model.ContainerConfig{},
		CheckpointTemp: filepath.Join(dir, checkpoint.ContainerDir(1)), CheckpointPod: pod,
		CheckpointMark: mark,
	})
	if err := errors.Join(os.MkdirAll(k.Containers.Path("c"), 0o700), k.Clean(c)); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "container-x" {
		t.Errorf("there is %v, %v", left, err)
	}
}

// A kubelet that rotates a log moves the file away before there is another. Seen to fail where that is an error.
func TestAContainerWhoseLogIsMovedIsWrittenDown(t *testing.T) {
	k, dir := newCheckpointer(t), t.TempDir()
	c := k.Containers.New("c", record.Container{
		ID: "c", Phase: record.ContainerRunning, Config: &model.ContainerConfig{}, LogPath: filepath.Join(dir, "absent.log"),
	})
	if err := os.MkdirAll(rootfs.Upper(k.Containers.Path("c")), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := k.copyFiles(t.Context(), c, new(c.Record()), dir); err != nil {
		t.Error(err)
	}
}

// TestWhatACheckpointLeavesIsRemoved by what its container's record says, and once.
func TestWhatACheckpointLeavesIsRemoved(t *testing.T) {
	k := newCheckpointer(t)
	temp := filepath.Join(t.TempDir(), ".berth-checkpoint-1")
	c := k.Containers.New("c", record.Container{
		ID: "c", Phase: record.ContainerRunning, Config: &model.ContainerConfig{}, CheckpointTemp: temp,
	})
	parts := filepath.Join(k.Containers.Path("c"), checkpointDir, "images")
	write(t, filepath.Join(parts, "pages-1.img"), "")
	write(t, temp, "")
	for range 2 {
		if err := k.Clean(c); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{parts, temp} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if left := c.Record().CheckpointTemp; left != "" {
		t.Errorf("on record is still %s", left)
	}
}
