package containerd

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"berth/internal/cri"
	"berth/internal/eventfeed"
	"berth/internal/model"
)

// fake is a domain with pods and containers that the tests write down.
type fake struct {
	mu         sync.Mutex // guards what follows
	sandboxes  map[string]*model.SandboxStatus
	containers map[string]*model.ContainerStatus
	acts       []string // on cgroups
	specs      int      // how many were read
	events     chan model.ContainerEvent
	subscribed func(context.Context) // is told of each subscription; nil: nobody wants to know
	named      chan model.ImageEvent
	feed       *eventfeed.Feed[model.ImageEvent] // in the place of named; nil: none
	figures    *model.CgroupFigures              // of every cgroup
}

func (f *fake) SandboxStatus(_ context.Context, id string) (*model.SandboxStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sandboxes {
		if strings.HasPrefix(s.ID, id) {
			return s, nil
		}
	}
	return nil, errdefs.ErrNotFound
}

func (f *fake) ListSandboxes(_ context.Context, filter model.SandboxFilter) ([]*model.SandboxStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.Collect(maps.Values(f.sandboxes))
	return slices.DeleteFunc(list, func(s *model.SandboxStatus) bool {
		return filter.State != "" && s.State != filter.State
	}), nil
}

func (f *fake) ContainerStatus(_ context.Context, id string) (*model.ContainerStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if strings.HasPrefix(c.ID, id) {
			return c, nil
		}
	}
	return nil, errdefs.ErrNotFound
}

func (f *fake) ListContainers(_ context.Context, filter model.ContainerFilter) ([]*model.ContainerStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.Collect(maps.Values(f.containers))
	return slices.DeleteFunc(list, func(c *model.ContainerStatus) bool {
		return !strings.HasPrefix(c.SandboxID, filter.SandboxID) ||
			len(filter.States) > 0 && !slices.Contains(filter.States, c.State)
	}), nil
}

func (f *fake) Subscribe(ctx context.Context) <-chan model.ContainerEvent {
	if f.subscribed != nil {
		f.subscribed(ctx)
	}
	return f.events
}

func (f *fake) ContainerSpec(_ context.Context, id string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs++
	return []byte(fmt.Sprintf(`{"ociVersion":"1.2.0","annotations":{"id":%q}}`, id)), nil
}

func (f *fake) ContainerProcesses(context.Context, string) ([]int, error) {
	return []int{100, 101}, nil
}

// CgroupFigures: a sandbox has no cgroup.
func (f *fake) CgroupFigures(_ context.Context, ids []string) []*model.CgroupFigures {
	out := make([]*model.CgroupFigures, len(ids))
	for i, id := range ids {
		if f.containers[id] != nil {
			out[i] = f.figures
		}
	}
	return out
}

func (f *fake) SandboxCgroup(_ context.Context, id string) (string, error) { return "/pods/" + id, nil }

func (f *fake) RenewSandboxCgroup(_ context.Context, id string) error { return f.act("renew " + id) }

func (f *fake) RemoveSandboxCgroup(_ context.Context, id string) error { return f.act("remove " + id) }

func (f *fake) act(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acts = append(f.acts, what)
	return nil
}

// images is a store of one image.
type images struct {
	image  *model.Image
	events chan model.ImageEvent
	feed   *eventfeed.Feed[model.ImageEvent]
}

func (i images) Subscribe(ctx context.Context) <-chan model.ImageEvent {
	if i.feed != nil {
		return i.feed.Follow(ctx)
	}
	return i.events
}

func (i images) Get(_ context.Context, ref string) (*model.Image, error) {
	if i.image.ID != ref && !slices.Contains(i.image.RepoTags, ref) {
		return nil, errdefs.ErrNotFound
	}
	return i.image, nil
}

func (i images) List(context.Context) ([]*model.Image, error) { return []*model.Image{i.image}, nil }

func (i images) Document(digest string) ([]byte, error) {
	switch digest {
	case i.image.Manifest:
		return []byte(`{"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}`), nil
	case i.image.ID:
		return []byte(strings.Repeat("c", 3*readChunk)), nil
	}
	return nil, errdefs.ErrNotFound
}

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newFake has a ready pod "sandbox" with a container that runs, one that has ended, one that was not started
// and one whose start has failed, and a pod "over" that has ended.
func newFake() *fake {
	pod := &model.SandboxConfig{
		Metadata: model.SandboxMetadata{Name: "web", Namespace: "shop", UID: "u"},
		Labels:   map[string]string{"io.kubernetes.pod.name": "web"},
	}
	config := func(name string) *model.ContainerConfig {
		return &model.ContainerConfig{
			Metadata: model.ContainerMetadata{Name: name},
			Labels:   map[string]string{"io.kubernetes.container.name": name, "owner": "pod"},
			Image:    model.ImageSpec{Image: "sha256:id", UserSpecifiedImage: "nginx:1"},
		}
	}
	return &fake{
		events: make(chan model.ContainerEvent, 16), named: make(chan model.ImageEvent, 16),
		sandboxes: map[string]*model.SandboxStatus{
			"sandbox": {ID: "sandbox", Config: pod, State: model.SandboxReady, CreatedAt: began, NetNS: "/run/netns/x"},
			"over":    {ID: "over", Config: pod, State: model.SandboxNotReady, CreatedAt: began},
		},
		containers: map[string]*model.ContainerStatus{
			"main": {ID: "main", SandboxID: "sandbox", Config: config("main"), State: model.ContainerRunning, PID: 100,
				CreatedAt: began.Add(1), StartedAt: began.Add(2), ImageID: "sha256:id"},
			"ended": {ID: "ended", SandboxID: "sandbox", Config: config("ended"), State: model.ContainerExited, PID: 99,
				CreatedAt: began.Add(2), StartedAt: began.Add(3), FinishedAt: began.Add(4), ExitCode: 7,
				ImageID: "sha256:id"},
			"failed": {ID: "failed", SandboxID: "sandbox", Config: config("failed"), State: model.ContainerExited,
				CreatedAt: began.Add(4), FinishedAt: began.Add(5), ExitCode: 128, ImageID: "sha256:id"},
			"waits": {ID: "waits", SandboxID: "sandbox", Config: config("waits"), State: model.ContainerCreated,
				CreatedAt: began.Add(3), ImageID: "sha256:gone"},
		},
	}
}

// serve answers for a domain, and returns a connection and a context of calls in the CRI's namespace.
func serve(t *testing.T, f *fake) (*API, *grpc.ClientConn, context.Context) {
	t.Helper()
	image := &model.Image{
		ID: "sha256:id", Manifest: "sha256:m", RepoTags: []string{"docker.io/library/nginx:1"}, Pinned: true,
		RepoDigests: []string{"docker.io/library/nginx@sha256:m"},
		Config:      ocispec.ImageConfig{Labels: map[string]string{"vendor": "nginx", "owner": "image"}},
	}
	a := New(Deps{Runtime: f, Version: "0.1.0", UUID: "u", Images: images{image, f.named, f.feed}})
	server, err := cri.NewServer(cri.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a.Register(server)
	listener := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-done
		a.Close()
	})
	return a, conn, namespaces.WithNamespace(t.Context(), namespace)
}
