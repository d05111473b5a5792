package apply

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/poddir"
	"berth/internal/cli/poddir/poddirtest"
)

// restless is a runtime without pods of its own, in which containers of others start and end all the time.
type restless struct {
	cri.RuntimeServiceClient
	mu    sync.Mutex
	lists int // how often somebody has asked for its pods
}

func (r *restless) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (
	*cri.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists++
	return &cri.ListPodSandboxResponse{}, nil
}

func (r *restless) listed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists
}

func (r *restless) GetContainerEvents(ctx context.Context, _ *cri.GetEventsRequest, _ ...grpc.CallOption) (
	cri.RuntimeService_GetContainerEventsClient, error) {
	return &events{ctx: ctx}, nil
}

type events struct {
	grpc.ClientStream
	ctx context.Context
}

func (e *events) Recv() (*cri.ContainerEventResponse, error) {
	select {
	case <-e.ctx.Done():
		return nil, e.ctx.Err()
	case <-time.After(settle / 6):
		return &cri.ContainerEventResponse{}, nil
	}
}

// notes is what a command has noted.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// TestEventsOfTheRuntimeReadNoFiles: while a program writes a file, events of containers do not make a part of it the
// manifest. Once it is left alone it is read, also if it is wrong then. Seen to fail where each event read the
// directory.
func TestEventsOfTheRuntimeReadNoFiles(t *testing.T) {
	f, runtime, told := newFiles(t), &restless{}, &notes{}
	a := &Applier{Conn: &connection.Connection{Runtime: runtime}, Directory: f.path, Notes: told,
		Store: &poddir.Store{Root: poddirtest.Root(t), Address: "unix:///run/berth.sock"}}
	f.write("m.yaml", mapText)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	time.Sleep(2 * settle)
	before := runtime.listed()
	if before == 0 {
		t.Error("the pods are not looked at")
	}
	var pause time.Duration // the longest for which a part of the file was there
	for range 20 {
		written := time.Now()
		f.write("m.yaml", mapText[:len(mapText)/2])
		time.Sleep(settle / 6)
		if err := os.Remove(filepath.Join(f.path, "m.yaml")); err != nil {
			t.Fatal(err)
		}
		pause = max(pause, time.Since(written))
	}
	f.write("m.yaml", mapText)
	if looked := runtime.listed() - before; looked == 0 {
		t.Error("events do not make it look at the pods")
	}
	time.Sleep(2 * settle)
	if text := told.String(); text != "" && pause < settle*2/3 { // longer on a machine that stood still
		t.Errorf("it noted, of a file that was right whenever it was left alone: %s", text)
	}
	f.write("m.yaml", "kind: Pod\n")
	for range 100 {
		if strings.Contains(told.String(), "m.yaml") {
			break
		}
		time.Sleep(settle / 6)
	}
	if !strings.Contains(told.String(), "m.yaml") {
		t.Error("a wrong file is not noted")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
