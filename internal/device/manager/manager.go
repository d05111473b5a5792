package manager

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/device"
	"berth/internal/model"
	"berth/internal/state"
)

// SocketName is the socket in Config.Dir that plugins register with. Its name is part of the protocol.
const SocketName = "kubelet.sock"

// Grace is how long a plugin that went away may take to return before its devices are forgotten.
const Grace = 5 * time.Minute

// Config is the configuration of a Manager.
type Config struct {
	Dir     string        // of the sockets of plugins and of the manager's own
	Root    string        // of the records; it outlives a reboot
	Timeout time.Duration // of a call of a plugin
	Grace   time.Duration // see Grace
	Server  *grpc.Server  // what the manager is served on; it ends it
	Log     *slog.Logger
}

// Manager follows plugins and allocates their devices. Its methods may be called concurrently.
type Manager struct {
	pluginapi.UnsafeRegistrationServer

	cfg     Config
	log     *slog.Logger
	records state.Records
	metrics *callMetrics

	mu        sync.Mutex           // guards what follows; no call of a plugin and no write is made under it
	resources map[string]*resource // by name
	pods      map[string]*pod      // by sandbox ID

	ctx        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup
}

// resource is what a plugin offers, or offered until it went away. Guarded by Manager.mu.
type resource struct {
	name     string
	endpoint string
	plugin   *plugin // nil: it went away
	devices  []device.Device
	listed   bool // the devices are the last word of a plugin, which may have gone away since
	problem  string
	forget   *time.Timer // while plugin is nil
}

// New reads the records. Nobody can register before Serve, and nothing can be allocated before Reconcile.
func New(cfg Config) (*Manager, error) {
	cfg.Dir = filepath.Clean(cfg.Dir)
	m := &Manager{
		cfg:       cfg,
		log:       cfg.Log,
		records:   state.Records{Dir: filepath.Join(cfg.Root, "devices"), File: "allocation.json"},
		metrics:   newMetrics(),
		resources: map[string]*resource{},
		pods:      map[string]*pod{},
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if err := m.load(); err != nil {
		return nil, err
	}
	pluginapi.RegisterRegistrationServer(cfg.Server, m)
	return m, nil
}

// Close ends the manager's own work. Plugins and containers live on.
func (m *Manager) Close() error {
	m.stop()
	m.cfg.Server.Stop()
	m.mu.Lock()
	for _, r := range m.resources {
		if r.forget != nil {
			r.forget.Stop()
		}
	}
	m.mu.Unlock()
	m.background.Wait()
	return nil
}

// usable says whether a device can be allocated as far as its plugin is concerned.
func (r *resource) usable(d device.Device) bool { return r.plugin != nil && d.Healthy }

// update is a plugin's new list of devices.
func (m *Manager) update(p *plugin, list []*pluginapi.Device) {
	devices, problem := readDevices(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[p.resource]
	if r == nil || r.plugin != p {
		return // another has taken its place
	}
	if problem != "" && problem != r.problem {
		m.log.Warn("a device plugin sends what the protocol does not allow", "resource", r.name, "problem", problem)
	}
	r.devices, r.listed, r.problem = devices, true, problem
	m.log.Debug("devices of a plugin", "resource", r.name, "devices", len(devices))
}

// readDevices is a plugin's list in our words, sorted by ID. What has no usable ID is left out, and problem says so.
func readDevices(list []*pluginapi.Device) (devices []device.Device, problem string) {
	seen := make(map[string]bool, len(list))
	devices = make([]device.Device, 0, len(list))
	for _, d := range list {
		switch id := d.GetID(); {
		case id == "":
			problem = "a device has no ID: it is left out"
			continue
		case len(id) > device.MaxID:
			problem = "the ID of a device is longer than 1024 bytes: it is left out"
			continue
		case seen[id]:
			problem = "two devices have the ID " + id + ": the first counts"
			continue
		default:
			seen[id] = true
			one := device.Device{ID: id, Healthy: d.GetHealth() == pluginapi.Healthy}
			for _, node := range d.GetTopology().GetNodes() {
				if !slices.Contains(one.NUMA, node.GetID()) {
					one.NUMA = append(one.NUMA, node.GetID())
				}
			}
			devices = append(devices, one)
		}
	}
	slices.SortFunc(devices, func(a, b device.Device) int { return strings.Compare(a.ID, b.ID) })
	return devices, problem
}

// gone notes that a plugin does not answer any more. Its devices are not allocated until it returns,
// and are forgotten if it takes too long.
func (m *Manager) gone(p *plugin, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[p.resource]
	if r == nil || r.plugin != p || m.ctx.Err() != nil {
		return
	}
	m.log.Warn("a device plugin went away", "resource", r.name, "endpoint", r.endpoint, "reason", why)
	r.plugin, r.problem = nil, "its plugin went away: "+why
	r.forget = time.AfterFunc(m.cfg.Grace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.resources[r.name] == r && r.plugin == nil {
			m.log.Warn("a device plugin has not returned: its devices are forgotten", "resource", r.name)
			delete(m.resources, r.name)
		}
	})
}

// List tells of all resources, sorted by name, and of their devices, sorted by ID. Devices that a container holds
// and that no plugin offers any more are in it.
func (m *Manager) List() []model.DeviceResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.held()
	names := slices.Collect(maps.Keys(m.resources))
	for name := range held {
		if m.resources[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := make([]model.DeviceResource, 0, len(names))
	for _, name := range names {
		one := model.DeviceResource{Name: name, Problem: "no plugin offers it"}
		left := held[name]
		if r := m.resources[name]; r != nil {
			one.Endpoint, one.Connected, one.Problem = r.endpoint, r.plugin != nil, r.problem
			for _, d := range r.devices {
				one.Devices = append(one.Devices,
					model.DeviceStatus{ID: d.ID, Healthy: r.usable(d), NUMA: d.NUMA, Holders: holders(left[d.ID])})
				delete(left, d.ID)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(left)) {
			one.Devices = append(one.Devices, model.DeviceStatus{ID: id, Holders: holders(left[id])})
		}
		out = append(out, one)
	}
	return out
}
