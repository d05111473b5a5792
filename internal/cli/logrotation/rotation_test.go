package logrotation

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/logpart"
)

// runtime opens logs again, or fails to.
type runtime struct {
	cri.RuntimeServiceClient
	log   string
	fails bool
	lost  bool // the answer, after the log was opened
	state cri.ContainerState
}

func (r *runtime) ContainerStatus(context.Context, *cri.ContainerStatusRequest, ...grpc.CallOption) (
	*cri.ContainerStatusResponse, error) {
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{State: r.state}}, nil
}

func (r *runtime) ReopenContainerLog(context.Context, *cri.ReopenContainerLogRequest, ...grpc.CallOption) (
	*cri.ReopenContainerLogResponse, error) {
	if r.fails {
		return nil, errors.New("no")
	}
	if err := os.WriteFile(r.log, nil, 0o600); err != nil || !r.lost {
		return &cri.ReopenContainerLogResponse{}, err
	}
	return nil, errors.New("the connection is closed")
}

func fill(t *testing.T, log string, size int64) {
	t.Helper()
	if err := os.WriteFile(log, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(log, size); err != nil {
		t.Fatal(err)
	}
}

func parts(t *testing.T, log string) (plain, zipped int) {
	t.Helper()
	names, err := filepath.Glob(log + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, compressed) {
			zipped++
		} else {
			plain++
		}
	}
	return plain, zipped
}

// TestALogThatIsWrittenToKeepsItsName: where the answer of the runtime is lost, the new log may be in use already.
func TestALogThatIsWrittenToKeepsItsName(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	r := &Rotation{Runtime: &runtime{log: log, lost: true, state: cri.ContainerState_CONTAINER_RUNNING}}
	fill(t, log, maxSize)
	if err := r.Rotate(t.Context(), "id", log); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(log); err != nil || info.Size() != 0 {
		t.Errorf("the new log has been replaced: %v", err)
	}
	if plain, zipped := parts(t, log); plain != 1 || zipped != 0 {
		t.Errorf("there are %d parts and %d compressed ones, want the log that was full", plain, zipped)
	}
}

// TestTheNewestPartIsTheLastThoughTheClockWasAhead when the parts before it were made.
func TestTheNewestPartIsTheLastThoughTheClockWasAhead(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	ahead := logpart.Name(log, time.Now().Add(time.Hour))
	fill(t, ahead, 5)
	fill(t, log, maxSize)
	r := &Rotation{Runtime: &runtime{log: log, state: cri.ContainerState_CONTAINER_RUNNING}}
	if err := r.Rotate(t.Context(), "id", log); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(log + ".*")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 2 || names[0] != ahead+compressed {
		t.Errorf("the parts are %q, want %s and then a new one", names, ahead+compressed)
	}
}

func TestFullLogsAreRotatedAndFiveFilesAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	log := filepath.Join(t.TempDir(), "0.log")
	r := &runtime{log: log, state: cri.ContainerState_CONTAINER_RUNNING}
	rotation := &Rotation{Runtime: r}
	rotate := func() error { return rotation.Rotate(t.Context(), "id", log) }
	if err := rotate(); err != nil {
		t.Errorf("without a log: %v", err)
	}
	fill(t, log, maxSize-1)
	if err := rotate(); err != nil {
		t.Error(err)
	}
	if plain, zipped := parts(t, log); plain+zipped != 0 {
		t.Error("a log that is not full was rotated")
	}
	for i, want := range [][2]int{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 3}, {1, 3}} {
		fill(t, log, maxSize)
		if err := rotate(); err != nil {
			t.Fatal(err)
		}
		if plain, zipped := parts(t, log); plain != want[0] || zipped != want[1] {
			t.Errorf("after rotation %d: %d parts and %d compressed ones, want %v", i+1, plain, zipped, want)
		}
	}
	fill(t, log, maxSize)
	r.fails = true
	if err := rotate(); err == nil {
		t.Error("a log that was not opened again is no error")
	}
	if info, err := os.Stat(log); err != nil || info.Size() != maxSize {
		t.Errorf("the log was not put back: %v", err)
	}
	r.fails, r.state = false, cri.ContainerState_CONTAINER_EXITED
	if err := rotate(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(log); err != nil || info.Size() != maxSize {
		t.Errorf("the log of a container that has ended was rotated: %v", err)
	}
}
