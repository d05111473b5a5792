package manager

import (
	"encoding/json"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"berth/internal/model"
	"berth/internal/state"
)

// Record is what the containers of a pod hold, as it stands on disk. Its JSON is the format of
// <root>/devices/<sandbox>/allocation.json.
type Record struct {
	SandboxID string   `json:"sandboxID"`
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Grants    []*Grant `json:"grants"`
}

// Grant is what one container of a pod holds. Guarded by Manager.mu.
type Grant struct {
	Container   string              `json:"container"` // its name
	Kind        string              `json:"kind,omitempty"`
	ContainerID string              `json:"containerID,omitempty"` // empty until it is made
	Devices     map[string][]string `json:"devices"`               // IDs by resource; not changed once it is set
	// Allocated: the plugins have answered. Without, the devices are reserved, and a crash has cut off the rest.
	Allocated bool `json:"allocated,omitempty"`
	// Released: the container is gone and the devices are free. It stays for the container that comes after it.
	Released bool          `json:"released,omitempty"`
	Edits    []model.Edits `json:"edits,omitempty"`
	// PreStart tells, by resource, whether the plugin that allocated the devices wants to be told of each start. Grants of
	// earlier versions do not say.
	PreStart map[string]bool `json:"preStart,omitempty"`
}

// pod is a Record in memory. It stays in Manager.pods until the pod is removed.
type pod struct {
	op     *semaphore.Weighted // one allocation at a time
	saving sync.Mutex          // held while the record is written, before Manager.mu
	rec    Record              // guarded by Manager.mu
}

// load reads the records. An allocation that was cut off is dropped.
func (m *Manager) load() error {
	loaded, broken, spared, err := state.LoadAll[Record](m.records)
	if err != nil {
		return err
	}
	for _, o := range spared {
		m.log.Warn("the newest version of a record is spoilt, and its second file was read", "pod_id", o.ID, "error", o.Err)
	}
	for _, b := range broken {
		m.log.Warn("remove a record of devices that cannot be read", "pod_id", b.ID, "error", b.Err)
		if err := os.RemoveAll(m.records.Path(b.ID)); err != nil {
			return err
		}
	}
	for id, r := range loaded {
		p := newPod()
		p.rec = *r
		p.rec.SandboxID = id
		p.rec.Grants = slices.DeleteFunc(p.rec.Grants, func(g *Grant) bool { return g == nil || !g.Allocated })
		m.pods[id] = p
	}
	return nil
}

func newPod() *pod { return &pod{op: semaphore.NewWeighted(1)} }

// save writes a pod's record as it is now, or removes it where nothing is left in it.
func (m *Manager) save(p *pod) error {
	p.saving.Lock()
	defer p.saving.Unlock()
	m.mu.Lock()
	id := p.rec.SandboxID
	data, err := json.Marshal(&p.rec)
	empty := len(p.rec.Grants) == 0
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if empty {
		return os.RemoveAll(m.records.Path(id))
	}
	return m.records.SaveTwice(id, json.RawMessage(data)) // a device whose record is lost would be given out again
}

// holding is a grant and the pod that it is in.
type holding struct {
	pod *pod
	*Grant
}

// held are the grants that hold devices, by resource and ID. The caller holds m.mu.
func (m *Manager) held() map[string]map[string][]holding {
	out := map[string]map[string][]holding{}
	for _, p := range m.pods {
		for _, g := range p.rec.Grants {
			if g.Released {
				continue
			}
			for resource, ids := range g.Devices {
				if out[resource] == nil {
					out[resource] = map[string][]holding{}
				}
				for _, id := range ids {
					out[resource][id] = append(out[resource][id], holding{p, g})
				}
			}
		}
	}
	return out
}

func holders(list []holding) []model.DeviceHolder {
	var out []model.DeviceHolder
	for _, h := range list {
		out = append(out, model.DeviceHolder{
			SandboxID: h.pod.rec.SandboxID, Namespace: h.pod.rec.Namespace, Pod: h.pod.rec.Pod,
			Container: h.Container, ContainerID: h.ContainerID,
		})
	}
	slices.SortFunc(out, func(a, b model.DeviceHolder) int {
		if a.Container < b.Container {
			return -1
		}
		return 1
	})
	return out
}

// Free gives back what a container holds. Its pod remembers it, for the container that comes after it.
func (m *Manager) Free(containerID string) {
	m.release(containerID, func(p *pod) bool { return false })
}

// Cancel gives back what was allocated for a container that could not be made. alone says that the pod has no other
// container: then nothing stays reserved for those to come either.
func (m *Manager) Cancel(sandboxID, containerID string, alone bool) {
	m.release(containerID, func(p *pod) bool { return alone && p.rec.SandboxID == sandboxID })
}

func (m *Manager) release(containerID string, all func(*pod) bool) {
	var changed []*pod
	m.mu.Lock()
	for _, p := range m.pods {
		if all(p) {
			p.rec.Grants = nil
			changed = append(changed, p)
			continue
		}
		for _, g := range p.rec.Grants {
			if g.ContainerID == containerID && !g.Released {
				g.Released = true
				changed = append(changed, p)
			}
		}
	}
	m.mu.Unlock()
	for _, p := range changed {
		// On a disk that is full the record stays as it was; the next start of the daemon finds that the container is gone.
		if err := m.save(p); err != nil {
			m.log.Error("record that devices are free", "container_id", containerID, "error", err)
		}
	}
}

// FreePod forgets a pod that is removed.
func (m *Manager) FreePod(sandboxID string) {
	m.mu.Lock()
	p := m.pods[sandboxID]
	if p != nil {
		p.rec.Grants = nil
		delete(m.pods, sandboxID)
	}
	m.mu.Unlock()
	if p == nil {
		return
	}
	if err := m.save(p); err != nil {
		m.log.Error("remove the record of a pod's devices", "pod_id", sandboxID, "error", err)
	}
}

// Reconcile frees what containers and pods hold that are not there any more.
func (m *Manager) Reconcile(podLives, containerLives func(id string) bool) {
	m.mu.Lock()
	var list []*pod
	for id, p := range m.pods {
		list = append(list, p)
		if !podLives(id) {
			p.rec.Grants = nil
			delete(m.pods, id)
		}
		for _, g := range p.rec.Grants {
			if g.ContainerID != "" && !containerLives(g.ContainerID) {
				g.Released = true
			}
		}
	}
	m.mu.Unlock()
	for _, p := range list {
		if err := m.save(p); err != nil {
			m.log.Error("record that devices are free", "pod_id", p.rec.SandboxID, "error", err)
		}
	}
}
