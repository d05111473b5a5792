package dashboard

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// secret is in an annotation and in the environment of the fake's pods, where nobody may see it.
const secret = "hunter2"

// fake is a runtime with pods of one container each.
type fake struct {
	cri.RuntimeServiceClient
	cri.ImageServiceClient
	berthv1.DevicesClient
	pods    int
	logPath string

	mu      sync.Mutex // guards what follows
	calls   map[string]int
	away    bool
	streams []chan *cri.ContainerEventResponse // closed: the stream of events breaks off
}

func newFake(pods int) *fake {
	return &fake{pods: pods, calls: map[string]int{}}
}

func (f *fake) connection() *connection.Connection {
	return &connection.Connection{Address: "unix:///fake", Runtime: f, Images: f, Devices: f}
}

// call counts a call. It fails while the runtime is away.
func (f *fake) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[name]++
	if f.away {
		return status.Error(codes.Unavailable, "connection error: gone")
	}
	return nil
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

func (f *fake) setAway(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

func (f *fake) Version(context.Context, *cri.VersionRequest, ...grpc.CallOption) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "berth", RuntimeVersion: "test"}, f.call("Version")
}

func (f *fake) Status(context.Context, *cri.StatusRequest, ...grpc.CallOption) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Reason: "NoBridge"}}}}, f.call("Status")
}

func (f *fake) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (
	*cri.ListPodSandboxResponse, error) {
	list := &cri.ListPodSandboxResponse{}
	for i := range f.pods {
		list.Items = append(list.Items, &cri.PodSandbox{
			Id: fmt.Sprintf("pod%061d", i), CreatedAt: time.Now().Add(-time.Duration(i) * time.Minute).UnixNano(),
			Metadata: &cri.PodSandboxMetadata{Name: fmt.Sprintf("web-%d", i), Namespace: fmt.Sprintf("team-%d", i%7), Uid: "u"},
			Labels:   map[string]string{"app": "web"}, Annotations: map[string]string{"applied": secret},
		})
	}
	return list, f.call("ListPodSandbox")
}

func (f *fake) PodSandboxStatus(_ context.Context, r *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (
	*cri.PodSandboxStatusResponse, error) {
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: r.PodSandboxId,
		Network: &cri.PodSandboxNetworkStatus{Ip: "10.1.2.3"}}}, f.call("PodSandboxStatus")
}

func (f *fake) ListContainers(_ context.Context, r *cri.ListContainersRequest, _ ...grpc.CallOption) (
	*cri.ListContainersResponse, error) {
	list := &cri.ListContainersResponse{}
	for i := range f.pods {
		id := fmt.Sprintf("con%061d", i)
		if wanted := r.GetFilter().GetId(); wanted != "" && !strings.HasPrefix(id, wanted) {
			continue
		}
		list.Containers = append(list.Containers, &cri.Container{
			Id: id, PodSandboxId: fmt.Sprintf("pod%061d", i), State: cri.ContainerState(i % 3),
			Metadata:    &cri.ContainerMetadata{Name: "main", Attempt: uint32(i % 4)},
			Annotations: map[string]string{"applied": secret},
		})
	}
	return list, f.call("ListContainers")
}

func (f *fake) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest, _ ...grpc.CallOption) (
	*cri.ContainerStatusResponse, error) {
	var i int
	_, _ = fmt.Sscanf(r.ContainerId, "con%d", &i)
	now := time.Now()
	st := &cri.ContainerStatus{Id: r.ContainerId, State: cri.ContainerState(i % 3), CreatedAt: now.UnixNano(),
		Image: &cri.ImageSpec{Image: "registry.test/team/web:1.2." + fmt.Sprint(i%5)}, LogPath: f.logPath,
		Resources: &cri.ContainerResources{Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}}
	if i%3 == int(cri.ContainerState_CONTAINER_EXITED) {
		st.ExitCode = int32(i % 2)
	}
	info := map[string]string{"info": `{"env":["PASSWORD=` + secret + `"]}`}
	return &cri.ContainerStatusResponse{Status: st, Info: info}, f.call("ContainerStatus")
}

func (f *fake) ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*cri.ListPodSandboxStatsResponse, error) {
	list := &cri.ListPodSandboxStatsResponse{}
	number := func(n int) *cri.UInt64Value { return &cri.UInt64Value{Value: uint64(n)} }
	for i := range f.pods {
		memory := &cri.MemoryUsage{WorkingSetBytes: number((i * 7919) % (64 << 20))}
		cpu := &cri.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: number(1),
			UsageNanoCores: number(i * 1e6)}
		list.Stats = append(list.Stats, &cri.PodSandboxStats{
			Attributes: &cri.PodSandboxAttributes{Id: fmt.Sprintf("pod%061d", i)},
			Linux: &cri.LinuxPodSandboxStats{Memory: memory, Cpu: cpu, Containers: []*cri.ContainerStats{{
				Attributes: &cri.ContainerAttributes{Id: fmt.Sprintf("con%061d", i),
					Metadata: &cri.ContainerMetadata{Name: "main"}}, Memory: memory, Cpu: cpu}}},
		})
	}
	return list, f.call("ListPodSandboxStats")
}

// List is that of a node without a device manager.
func (f *fake) List(context.Context, *berthv1.ListDevicesRequest, ...grpc.CallOption) (*berthv1.ListDevicesResponse,
	error) {
	return nil, status.Error(codes.FailedPrecondition, "the device manager is off")
}

// fakeEvents is a stream of events.
type fakeEvents struct {
	grpc.ClientStream
	ctx    context.Context
	events chan *cri.ContainerEventResponse
}

func (f *fake) GetContainerEvents(ctx context.Context, _ *cri.GetEventsRequest, _ ...grpc.CallOption) (
	cri.RuntimeService_GetContainerEventsClient, error) {
	if err := f.call("GetContainerEvents"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	events := make(chan *cri.ContainerEventResponse, 10)
	f.streams = append(f.streams, events)
	return &fakeEvents{ctx: ctx, events: events}, nil
}

func (e *fakeEvents) Recv() (*cri.ContainerEventResponse, error) {
	select {
	case event, ok := <-e.events:
		if !ok {
			return nil, status.Error(codes.Unavailable, "transport is closing")
		}
		return event, nil
	case <-e.ctx.Done():
		return nil, e.ctx.Err()
	}
}

// happen tells both who listen of an event: the list of events, and the watch of containers whose logs are followed.
func (f *fake) happen(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		if len(f.streams) == 2 {
			break
		}
		f.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatal("nobody listens to events")
		}
	}
	defer f.mu.Unlock()
	for _, stream := range f.streams {
		stream <- &cri.ContainerEventResponse{ContainerId: name, PodSandboxStatus: &cri.PodSandboxStatus{Id: name,
			Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default"}}}
	}
}

// breakOff ends the streams of events.
func (f *fake) breakOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stream := range f.streams {
		close(stream)
	}
	f.streams = nil
}

// ask sends a request to a server as a browser with the secret does. edit changes it.
func ask(s *Server, path string, edit func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:1234"+path, nil)
	r.Header.Set("Authorization", "Bearer "+s.token)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, r)
	return w
}

// serve serves a fake on a port of the loopback until the test ends. get sends a request with the secret.
func serve(t *testing.T, f *fake) (s *Server, get func(path string) (*http.Response, error)) {
	t.Helper()
	address, err := ParseAddress(DefaultAddress)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := Listen(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	s = New(f.connection(), "test")
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, func(path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+s.token)
		return http.DefaultClient.Do(r)
	}
}

// text is the body of a response.
func text(t *testing.T, w *http.Response) string {
	t.Helper()
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
