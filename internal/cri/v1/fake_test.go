package v1

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod"
	"berth/internal/stream"
)

// recorder is a domain that does nothing and keeps what it was called with. The life of pods is tested elsewhere,
// with the real one.
type recorder struct {
	mu    sync.Mutex // guards calls
	calls []call

	sandboxes  []*model.SandboxStatus
	containers []*model.ContainerStatus
	images     []*model.Image
	events     []model.ContainerEvent
	usage      []*model.ContainerUsage
	podUsage   []*model.SandboxUsage
	metrics    []model.SandboxMetrics
	stdout     []byte
	stderr     []byte
	err        error
	panics     bool
}

type call struct {
	name string
	args []any
}

func (r *recorder) record(name string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call{name, args})
	if r.panics {
		panic("the domain panics")
	}
	return r.err
}

// last returns the arguments of the last call, which must be of that name.
func (r *recorder) last(name string) []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) == 0 || r.calls[len(r.calls)-1].name != name {
		return nil
	}
	return r.calls[len(r.calls)-1].args
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

func (r *recorder) RunSandbox(_ context.Context, cfg *model.SandboxConfig, handler string) (string, error) {
	return "pod1", r.record("RunSandbox", cfg, handler)
}
func (r *recorder) StopSandbox(_ context.Context, id string) error {
	return r.record("StopSandbox", id)
}
func (r *recorder) RemoveSandbox(_ context.Context, id string) error {
	return r.record("RemoveSandbox", id)
}

func (r *recorder) SandboxStatus(_ context.Context, id string) (*model.SandboxStatus, error) {
	if err := r.record("SandboxStatus", id); err != nil {
		return nil, err
	}
	for _, st := range r.sandboxes {
		if st.ID == id {
			return st, nil
		}
	}
	return nil, fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
}

func (r *recorder) SandboxInfo(_ context.Context, id string) (map[string]any, error) {
	return map[string]any{"pod": true}, r.record("SandboxInfo", id)
}

func (r *recorder) ListSandboxes(_ context.Context, f model.SandboxFilter) ([]*model.SandboxStatus, error) {
	return r.sandboxes, r.record("ListSandboxes", f)
}

func (r *recorder) UpdateSandboxResources(_ context.Context, id string, overhead, resources *model.Resources) error {
	return r.record("UpdateSandboxResources", id, overhead, resources)
}

func (r *recorder) CreateContainer(_ context.Context, id string, cfg *model.ContainerConfig) (string, error) {
	return "container1", r.record("CreateContainer", id, cfg)
}
func (r *recorder) StartContainer(_ context.Context, id string) error {
	return r.record("StartContainer", id)
}

func (r *recorder) StopContainer(_ context.Context, id string, timeout time.Duration) error {
	return r.record("StopContainer", id, timeout)
}
func (r *recorder) RemoveContainer(_ context.Context, id string) error {
	return r.record("RemoveContainer", id)
}

func (r *recorder) ContainerStatus(_ context.Context, id string) (*model.ContainerStatus, error) {
	if err := r.record("ContainerStatus", id); err != nil {
		return nil, err
	}
	for _, st := range r.containers {
		if st.ID == id {
			return st, nil
		}
	}
	return nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
}

func (r *recorder) ContainerInfo(_ context.Context, id string) (map[string]any, error) {
	return map[string]any{"pid": 1}, r.record("ContainerInfo", id)
}

func (r *recorder) ListContainers(_ context.Context, f model.ContainerFilter) ([]*model.ContainerStatus, error) {
	return r.containers, r.record("ListContainers", f)
}

func (r *recorder) UpdateContainerResources(_ context.Context, id string, res *model.Resources,
	a map[string]string) error {
	return r.record("UpdateContainerResources", id, res, a)
}

func (r *recorder) ReopenContainerLog(_ context.Context, id string) error {
	return r.record("ReopenContainerLog", id)
}

func (r *recorder) CheckpointContainer(_ context.Context, id, location string, timeout time.Duration) error {
	return r.record("CheckpointContainer", id, location, timeout)
}

func (r *recorder) CheckpointSandbox(_ context.Context, id, dir string, containers []string) error {
	return r.record("CheckpointSandbox", id, dir, containers)
}

func (r *recorder) RestoreSandbox(_ context.Context, dir string, cfg *model.SandboxConfig, handler string,
	containers []*model.ContainerConfig) (string, []string, error) {
	if err := r.record("RestoreSandbox", dir, cfg, handler, containers); err != nil {
		return "", nil, err
	}
	var ids []string
	for _, c := range containers {
		ids = append(ids, "restored-"+c.Metadata.Name)
	}
	return "restored", ids, nil
}

func (r *recorder) ExecSync(_ context.Context, id string, cmd []string, timeout time.Duration) ([]byte,
	[]byte, int, error) {
	return r.stdout, r.stderr, 3, r.record("ExecSync", id, cmd, timeout)
}

func (r *recorder) ContainerUsage(_ context.Context, id string) (*model.ContainerUsage, error) {
	if err := r.record("ContainerUsage", id); err != nil {
		return nil, err
	}
	if len(r.usage) == 0 {
		return nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
	}
	return r.usage[0], nil
}

func (r *recorder) ListContainerUsage(_ context.Context, f model.ContainerFilter) ([]*model.ContainerUsage, error) {
	return r.usage, r.record("ListContainerUsage", f)
}

func (r *recorder) SandboxUsage(_ context.Context, id string) (*model.SandboxUsage, error) {
	if err := r.record("SandboxUsage", id); err != nil {
		return nil, err
	}
	if len(r.podUsage) == 0 {
		return nil, fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	return r.podUsage[0], nil
}

func (r *recorder) ListSandboxUsage(_ context.Context, f model.SandboxFilter) ([]*model.SandboxUsage, error) {
	return r.podUsage, r.record("ListSandboxUsage", f)
}

func (r *recorder) MetricDescriptors() []model.MetricDescriptor {
	_ = r.record("MetricDescriptors")
	return []model.MetricDescriptor{{Name: "a", Help: "of a", Labels: []string{"b", "c"}}}
}

func (r *recorder) ListSandboxMetrics(context.Context) ([]model.SandboxMetrics, error) {
	return r.metrics, r.record("ListSandboxMetrics")
}

func (r *recorder) Subscribe(context.Context) <-chan model.ContainerEvent {
	_ = r.record("Subscribe")
	ch := make(chan model.ContainerEvent, len(r.events))
	for _, e := range r.events {
		ch <- e
	}
	close(ch) // as for a reader that is too slow
	return ch
}

func (r *recorder) Conditions(context.Context) []pod.Condition {
	_ = r.record("Conditions")
	return []pod.Condition{{Type: "RuntimeReady", Status: true},
		{Type: "NetworkReady", Reason: "NoNetwork", Message: "none"}}
}

func (r *recorder) Handlers() []pod.HandlerInfo {
	return []pod.HandlerInfo{{Name: "", RecursiveReadOnlyMounts: true}, {Name: "crun", UserNamespaces: true}}
}

func (r *recorder) SetPodCIDR(_ context.Context, cidr string) error {
	return r.record("SetPodCIDR", cidr)
}
func (r *recorder) CgroupDriver() string { return "systemd" }

// recorder is an image store too.
type recordedImages struct{ *recorder }

func (r recordedImages) PullImage(_ context.Context, spec model.ImageSpec, auth *model.Auth) (*model.Image, error) {
	return &model.Image{ID: "sha256:1"}, r.record("PullImage", spec, auth)
}

func (r recordedImages) Get(_ context.Context, ref string) (*model.Image, error) {
	if err := r.record("Get", ref); err != nil {
		return nil, err
	}
	for _, img := range r.images {
		if img.ID == ref {
			return img, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
}
func (r recordedImages) List(context.Context) ([]*model.Image, error) {
	return r.images, r.record("List")
}
func (r recordedImages) Remove(_ context.Context, ref string) error { return r.record("Remove", ref) }

func (r recordedImages) Usage(context.Context) (model.FilesystemUsage, error) {
	return model.FilesystemUsage{At: time.Unix(9, 0), Mountpoint: "/var/lib/berth", UsedBytes: 5}, r.record("Usage")
}

func (r recordedImages) ConfigJSON(id string) ([]byte, error) {
	return []byte(`{"os":"linux"}`), r.record("ConfigJSON", id)
}

func (r recordedImages) Manifest(id string) ([]byte, error) {
	return []byte(`{"schemaVersion":2}`), r.record("Manifest", id)
}

// recordedStreams makes addresses that lead nowhere.
type recordedStreams struct{ *recorder }

func (r recordedStreams) GetExec(_ context.Context, req stream.ExecRequest) (string, error) {
	return "http://exec", r.record("GetExec", req)
}
func (r recordedStreams) GetAttach(_ context.Context, req stream.AttachRequest) (string, error) {
	return "http://attach", r.record("GetAttach", req)
}
func (r recordedStreams) GetPortForward(_ context.Context, req stream.PortForwardRequest) (string, error) {
	return "http://portforward", r.record("GetPortForward", req)
}
