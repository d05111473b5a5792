package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/device"
	"berth/internal/model"
)

// Request asks for the devices of a container that is being made.
type Request struct {
	SandboxID, Namespace, Pod string
	ContainerID, Container    string
	Asks                      []device.Ask // of all containers of the pod, in the order in which they are made
	Ended                     []string     // IDs of containers of the pod that have ended
}

// Allocate reserves devices, tells the plugins, and returns what they add to the container. The first container
// of a pod brings the devices of all: no pod starts that cannot have what its later containers ask for.
// A container that is made again has its devices back where they are healthy and free.
//
// Too few devices are errdefs.ErrResourceExhausted. After an error nothing more is allocated than before.
func (m *Manager) Allocate(ctx context.Context, req Request) ([]model.Edits, error) {
	if len(req.Asks) == 0 {
		return nil, nil
	}
	p := m.podOf(req)
	if err := p.op.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("devices of another container of the pod are being allocated: %w", err)
	}
	defer p.op.Release(1)

	m.mu.Lock()
	first := len(p.rec.Grants) == 0
	g := p.waiting(req.Container)
	if g != nil && m.intact(g) {
		g.ContainerID = req.ContainerID
	} else {
		g = nil
	}
	m.mu.Unlock()
	if g == nil {
		asks := req.Asks
		if !first {
			asks = slices.DeleteFunc(slices.Clone(asks), func(a device.Ask) bool { return a.Container != req.Container })
		}
		if len(asks) == 0 {
			return nil, nil // it asks for none
		}
		var err error
		if g, err = m.grant(ctx, &req, p, asks); err != nil {
			return nil, err
		}
		if g == nil {
			return nil, nil // the others ask, it does not
		}
		return g.Edits, nil
	}
	if err := m.save(p); err != nil {
		m.mu.Lock()
		g.ContainerID = ""
		m.mu.Unlock()
		return nil, err
	}
	return g.Edits, nil
}

func (m *Manager) podOf(req Request) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[req.SandboxID]
	if p == nil {
		p = newPod()
		p.rec = Record{SandboxID: req.SandboxID, Namespace: req.Namespace, Pod: req.Pod}
		m.pods[req.SandboxID] = p
	}
	return p
}

// waiting is what was allocated to a container before it is made. The caller holds m.mu.
func (p *pod) waiting(container string) *Grant {
	for _, g := range p.rec.Grants {
		if g.Container == container && g.ContainerID == "" && !g.Released {
			return g
		}
	}
	return nil
}

// intact tells whether no plugin has said that a device of a grant is unhealthy or gone. A plugin that is away has done
// its part for the grant. The caller holds m.mu.
func (m *Manager) intact(g *Grant) bool {
	for name, ids := range g.Devices {
		r := m.resources[name]
		if r == nil || !r.listed {
			continue
		}
		for _, id := range ids {
			if !slices.ContainsFunc(r.devices, func(d device.Device) bool { return d.ID == id && d.Healthy }) {
				return false
			}
		}
	}
	return true
}

// grant reserves devices for asks, writes that down, and asks the plugins to allocate them. It returns the grant of the
// request's own container; nil: it asks for none.
func (m *Manager) grant(ctx context.Context, req *Request, p *pod, asks []device.Ask) (*Grant, error) {
	added, plugins, err := m.reserve(ctx, req, p, asks)
	if err == nil {
		if err = m.save(p); err == nil {
			err = m.allocate(ctx, added, plugins)
		}
	}
	m.mu.Lock()
	if err != nil {
		p.rec.Grants = slices.DeleteFunc(p.rec.Grants, func(g *Grant) bool { return slices.Contains(added, g) })
	} else {
		// What the containers held before they were made again is theirs no more.
		p.rec.Grants = slices.DeleteFunc(p.rec.Grants, func(old *Grant) bool {
			return !slices.Contains(added, old) && slices.ContainsFunc(added, func(g *Grant) bool {
				return g.Container == old.Container && old.over(req.Ended)
			})
		})
	}
	m.mu.Unlock()
	if saveErr := m.save(p); err == nil && saveErr != nil {
		err = saveErr
		m.mu.Lock()
		p.rec.Grants = slices.DeleteFunc(p.rec.Grants, func(g *Grant) bool { return slices.Contains(added, g) })
		m.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	for _, g := range added {
		if g.ContainerID == req.ContainerID {
			return g, nil
		}
	}
	return nil, nil
}

// over tells whether a grant's container does not need it any more, or has not been made. The caller holds m.mu.
func (g *Grant) over(ended []string) bool {
	return g.Released || g.ContainerID == "" || slices.Contains(ended, g.ContainerID)
}

// preference is what a plugin would have for a container, and what it chose from.
type preference struct {
	plugin          *plugin
	key             string // container and resource
	resource        string
	available, must []string
	n               int
}

// maxPreferences is how often a plugin is asked for one choice, when others take what it chose meanwhile.
const maxPreferences = 5

// reserve chooses devices for asks and enters them. It returns the new grants and the plugins that they are of.
func (m *Manager) reserve(ctx context.Context, req *Request, p *pod, asks []device.Ask) ([]*Grant,
	map[string]*plugin, error) {
	preferred, tries := map[string][]string{}, map[string]int{}
	for {
		m.mu.Lock()
		added, wants, err := m.propose(req, p, asks, preferred, tries)
		plugins := map[string]*plugin{}
		if err == nil && wants == nil {
			p.rec.Grants = append(p.rec.Grants, added...)
			for _, g := range added {
				for name := range g.Devices {
					plugins[name] = m.resources[name].plugin
				}
			}
		}
		m.mu.Unlock()
		if err != nil || wants == nil {
			return added, plugins, err
		}
		if preferred[wants.key], err = wants.ask(ctx); err != nil {
			return nil, nil, err
		}
		tries[wants.key]++
	}
}

// propose chooses devices for asks one after another. Where a plugin is to be asked first, it says for what. The caller
// holds m.mu.
func (m *Manager) propose(req *Request, p *pod, asks []device.Ask, preferred map[string][]string,
	tries map[string]int) (
	[]*Grant, *preference, error) {
	held := m.held()
	taken := map[string][]string{}  // by this proposal, by resource
	handed := map[string][]string{} // of those, what init containers have that those after them may have
	var added []*Grant
	for _, ask := range asks {
		g := &Grant{Container: ask.Container, Kind: ask.Kind, Devices: map[string][]string{},
			PreStart: map[string]bool{}}
		if ask.Container == req.Container {
			g.ContainerID = req.ContainerID
		}
		var near []int64
		for _, name := range slices.Sorted(maps.Keys(ask.Limits)) {
			n := ask.Limits[name]
			if n == 0 {
				continue
			}
			r := m.resources[name]
			if r == nil {
				return nil, nil, fmt.Errorf("container %s asks for %s, which no device plugin of this node offers: %w",
					ask.Container, name, errdefs.ErrFailedPrecondition)
			}
			available := m.available(req, p, ask, r, held[name], taken[name], handed[name])
			if len(available) < n {
				return nil, nil, r.exhausted(ask.Container, n, len(available), len(held[name]))
			}
			must := first(n, available, handed[name], p.former(ask.Container, name, req.Ended))
			key := ask.Container + "/" + name
			ids, known := preferred[key]
			if r.plugin.options.Load().GetGetPreferredAllocationAvailable() && n < len(available) && len(must) < n &&
				tries[key] < maxPreferences && !(known && holdsAll(available, ids) && containsAll(ids, must)) {
				return nil, &preference{r.plugin, key, name, identifiers(available), must, n}, nil
			}
			if !known || !holdsAll(available, ids) || !containsAll(ids, must) {
				ids = must
			}
			ids = device.Pick(available, ids, n, near)
			g.Devices[name] = ids
			for _, d := range available {
				if slices.Contains(ids, d.ID) {
					near = append(near, d.NUMA...)
				}
			}
			taken[name] = append(taken[name], ids...)
			if ask.Kind == device.KindInit {
				handed[name] = append(handed[name], ids...)
			} else {
				handed[name] = slices.DeleteFunc(handed[name], func(id string) bool { return slices.Contains(ids, id) })
			}
		}
		if len(g.Devices) > 0 {
			added = append(added, g)
		}
	}
	return added, nil, nil
}

// available are the devices of a resource that a container may have: healthy, and free or on their way to it.
func (m *Manager) available(req *Request, p *pod, ask device.Ask, r *resource, held map[string][]holding, taken,
	handed []string) []device.Device {
	var out []device.Device
	for _, d := range r.devices {
		mine := slices.ContainsFunc(held[d.ID], func(h holding) bool {
			if h.pod != p {
				return true
			}
			// What it had itself, and what an init container had that has ended.
			return !(h.over(req.Ended) && (h.Container == ask.Container || h.Kind == device.KindInit ||
				ask.Kind == device.KindInit))
		})
		if r.usable(d) && !mine && (!slices.Contains(taken, d.ID) || slices.Contains(handed, d.ID)) {
			out = append(out, d)
		}
	}
	return out
}

func (r *resource) exhausted(container string, n, free, held int) error {
	unhealthy := 0
	for _, d := range r.devices {
		if !r.usable(d) {
			unhealthy++
		}
	}
	return fmt.Errorf(
		"container %s asks for %d of %s: %d are free; of %d devices, containers hold %d and %d are unhealthy: %w",
		container, n, r.name, free, len(r.devices), held, unhealthy, errdefs.ErrResourceExhausted)
}

// former are the devices that a container had before it is made again. The caller holds m.mu.
func (p *pod) former(container, resource string, ended []string) []string {
	for i := len(p.rec.Grants) - 1; i >= 0; i-- {
		if g := p.rec.Grants[i]; g.Container == container && g.over(ended) {
			return g.Devices[resource]
		}
	}
	return nil
}

// first are the first n of lists that are available.
func first(n int, available []device.Device, lists ...[]string) []string {
	var out []string
	for _, list := range lists {
		for _, id := range list {
			if len(out) < n && !slices.Contains(out, id) && holdsAll(available, []string{id}) {
				out = append(out, id)
			}
		}
	}
	return out
}

func identifiers(list []device.Device) []string {
	out := make([]string, len(list))
	for i, d := range list {
		out[i] = d.ID
	}
	return out
}

// holdsAll needs the devices sorted by ID.
func holdsAll(list []device.Device, ids []string) bool {
	for _, id := range ids {
		if _, ok := slices.BinarySearchFunc(list, id, func(d device.Device, id string) int {
			switch {
			case d.ID < id:
				return -1
			case d.ID > id:
				return 1
			}
			return 0
		}); !ok {
			return false
		}
	}
	return true
}

func containsAll(list, ids []string) bool {
	for _, id := range ids {
		if !slices.Contains(list, id) {
			return false
		}
	}
	return true
}

// ask asks the plugin which devices it prefers. An empty answer is no preference.
func (w *preference) ask(ctx context.Context) ([]string, error) {
	const name = "GetPreferredAllocation"
	answer, err := call(w.plugin, ctx, name, func(ctx context.Context) (*pluginapi.PreferredAllocationResponse, error) {
		return w.plugin.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: w.available, MustIncludeDeviceIDs: w.must, AllocationSize: int32(w.n),
			}},
		})
	})
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("device plugin of %s: %s: it answers %s: %w", w.resource, name, fmt.Sprintf(format, args...),
			errdefs.ErrFailedPrecondition)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return nil, nil
	}
	if n := len(answer.GetContainerResponses()); n > 1 {
		return nil, bad("for %d containers, and one was asked for", n)
	}
	ids := answer.GetContainerResponses()[0].GetDeviceIDs()
	if len(ids) == 0 {
		return nil, nil
	}
	if len(ids) > w.n {
		return nil, bad("with %d devices, and %d were asked for", len(ids), w.n)
	}
	for i, id := range ids {
		if !slices.Contains(w.available, id) {
			return nil, bad("with device %q, which is not available", id)
		}
		if slices.Contains(ids[:i], id) {
			return nil, bad("with device %q twice", id)
		}
	}
	for _, id := range w.must {
		if !slices.Contains(ids, id) {
			return nil, bad("without device %q, which must be included", id)
		}
	}
	return ids, nil
}

// allocate tells each plugin, in one call, which devices it gives to which of the containers.
func (m *Manager) allocate(ctx context.Context, grants []*Grant, plugins map[string]*plugin) error {
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		p := plugins[name]
		if p == nil {
			return fmt.Errorf("device plugin of %s went away: %w", name, errdefs.ErrUnavailable)
		}
		var of []*Grant
		req := &pluginapi.AllocateRequest{}
		for _, g := range grants {
			if ids := g.Devices[name]; len(ids) > 0 {
				of = append(of, g)
				req.ContainerRequests = append(req.ContainerRequests, &pluginapi.ContainerAllocateRequest{DevicesIds: ids})
			}
		}
		answer, err := call(p, ctx, "Allocate", func(ctx context.Context) (*pluginapi.AllocateResponse, error) {
			return p.api.Allocate(ctx, req)
		})
		if err != nil {
			return err
		}
		if n := len(answer.GetContainerResponses()); n != len(of) {
			return fmt.Errorf("device plugin of %s: Allocate: it answers for %d containers, and %d were asked for: %w", name, n,
				len(of), errdefs.ErrFailedPrecondition)
		}
		for i, g := range of {
			edits, err := readEdits(name, answer.GetContainerResponses()[i])
			if err != nil {
				return err
			}
			m.mu.Lock()
			g.Edits = append(g.Edits, edits)
			g.PreStart[name] = p.options.Load().GetPreStartRequired()
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range grants {
		g.Allocated = true
	}
	return nil
}
