package plugintest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin serves devices of one resource. The fields are set before Start.
type Plugin struct {
	pluginapi.UnsafeDevicePluginServer

	Dir      string // of plugins
	Endpoint string
	Resource string
	Options  *pluginapi.DevicePluginOptions // said when it registers
	// OnOptions answers GetDevicePluginOptions; nil: as Options.
	OnOptions func() (*pluginapi.DevicePluginOptions, error)

	// OnAllocate, OnPreferred and OnPreStart answer calls. Without, an allocation is empty, there is no preference,
	// and any start is fine.
	OnAllocate  func(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error)
	OnPreferred func(context.Context, *pluginapi.PreferredAllocationRequest) (
		*pluginapi.PreferredAllocationResponse, error)
	OnPreStart func(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error)

	server *grpc.Server

	mu      sync.Mutex // guards what follows
	devices []*pluginapi.Device
	changed chan struct{} // closed at each change
	calls   map[string]int
	last    map[string]any
}

// Devices are healthy devices of no NUMA node.
func Devices(ids ...string) []*pluginapi.Device {
	var out []*pluginapi.Device
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}

// Start serves on the plugin's socket and does not register.
func (p *Plugin) Start(devices ...*pluginapi.Device) error {
	p.devices, p.changed = devices, make(chan struct{})
	p.calls, p.last = map[string]int{}, map[string]any{}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	return p.listen()
}

func (p *Plugin) listen() error {
	path := filepath.Join(p.Dir, p.Endpoint)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() { _ = p.server.Serve(l) }()
	return nil
}

// Stop ends the plugin at once, as a kill would.
func (p *Plugin) Stop() { p.server.Stop() }

// Return makes the plugin's socket again, as plugins do when the manager has come back, and registers.
func (p *Plugin) Return(ctx context.Context) error {
	if err := p.listen(); err != nil {
		return err
	}
	return p.Register(ctx)
}

// Follow calls Return whenever the plugin's own socket is removed, until ctx ends. Like some plugins, it does not look
// at the manager's socket: it only tries until the manager answers.
func (p *Plugin) Follow(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := watcher.Add(p.Dir); err != nil {
		watcher.Close()
		return err
	}
	own := filepath.Join(p.Dir, p.Endpoint)
	go func() {
		defer watcher.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-watcher.Events:
				if event.Name != own || !event.Has(fsnotify.Remove) {
					continue
				}
			}
			for err := p.Return(ctx); err != nil && ctx.Err() == nil; err = p.Register(ctx) {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	return nil
}

// Register registers with the manager in the plugin's directory.
func (p *Plugin) Register(ctx context.Context) error {
	return Register(ctx, filepath.Join(p.Dir, "kubelet.sock"), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: p.Endpoint, ResourceName: p.Resource, Options: p.Options,
	})
}

// Register makes any request at a manager's socket.
func Register(ctx context.Context, socket string, req *pluginapi.RegisterRequest) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, req)
	return err
}

// Send tells the manager of other devices.
func (p *Plugin) Send(devices ...*pluginapi.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	close(p.changed)
	p.changed = make(chan struct{})
}

// Calls is how often a call was made.
func (p *Plugin) Calls(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[name]
}

// Last is the last request of a call.
func (p *Plugin) Last(name string) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[name]
}

func (p *Plugin) note(name string, req any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[name]++
	p.last[name] = req
}

// GetDevicePluginOptions answers as OnOptions does.
func (p *Plugin) GetDevicePluginOptions(_ context.Context,
	req *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.note("GetDevicePluginOptions", req)
	if p.OnOptions != nil {
		return p.OnOptions()
	}
	if p.Options == nil {
		return &pluginapi.DevicePluginOptions{}, nil
	}
	return p.Options, nil
}

// ListAndWatch sends the devices, and again at each Send.
func (p *Plugin) ListAndWatch(req *pluginapi.Empty,
	stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.note("ListAndWatch", req)
	for {
		p.mu.Lock()
		devices, changed := slices.Clone(p.devices), p.changed
		p.mu.Unlock()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation answers as OnPreferred does.
func (p *Plugin) GetPreferredAllocation(ctx context.Context,
	req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	p.note("GetPreferredAllocation", req)
	if p.OnPreferred == nil {
		return &pluginapi.PreferredAllocationResponse{}, nil
	}
	return p.OnPreferred(ctx, req)
}

// Allocate answers as OnAllocate does.
func (p *Plugin) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.note("Allocate", req)
	if p.OnAllocate != nil {
		return p.OnAllocate(ctx, req)
	}
	out := &pluginapi.AllocateResponse{}
	for range req.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return out, nil
}

// PreStartContainer answers as OnPreStart does.
func (p *Plugin) PreStartContainer(ctx context.Context,
	req *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.note("PreStartContainer", req)
	if p.OnPreStart == nil {
		return &pluginapi.PreStartContainerResponse{}, nil
	}
	return p.OnPreStart(ctx, req)
}

// Allocated lists, for each container of an Allocate request, its devices, joined by commas.
func Allocated(req any) []string {
	var out []string
	for _, c := range req.(*pluginapi.AllocateRequest).GetContainerRequests() {
		text := ""
		for i, id := range c.GetDevicesIds() {
			if i > 0 {
				text += ","
			}
			text += id
		}
		out = append(out, text)
	}
	return out
}

// Many are n healthy devices, dev-0 and on.
func Many(n int) []*pluginapi.Device {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("dev-%d", i)
	}
	return Devices(ids...)
}
