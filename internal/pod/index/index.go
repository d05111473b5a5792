// Package index owns the list of all pods and containers, in memory. Each entry has the object's record, the lock for
// its operations, and its state that is only in memory. The package finds objects by ID, reserves their names, and
// gives them increasing creation times, by which kubelets order attempts.
package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod/operation"
	"berth/internal/pod/record"
)

// Index is which pods and containers there are, and which names they have taken. Its exported methods may be called
// concurrently; the others need its lock.
type Index struct {
	mu         sync.RWMutex // guards what is below, not what the maps point to
	pods       map[string]*Sandbox
	containers map[string]*Container
	members    map[string][]*Container // the containers of a pod, by its ID
	names      map[string]string       // sandboxName or containerName to ID
	// lastCreated is the latest creation time of any pod or container.
	lastCreated time.Time
}

// New is an empty index.
func New() *Index {
	return &Index{
		pods: map[string]*Sandbox{}, containers: map[string]*Container{}, members: map[string][]*Container{},
		names: map[string]string{},
	}
}

// Sandbox finds a pod for a client, by its ID or a prefix of it that no other has. A pod that is still being made is
// not found: a plugin may know its ID.
func (x *Index) Sandbox(id string) (*Sandbox, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s, err := resolve("pod sandbox", x.pods, id)
	if err == nil && s.Making() {
		return nil, fmt.Errorf("pod sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	return s, err
}

// Container finds a container for a client, by its ID or a prefix of it that no other has. One that is still being made
// is not found.
func (x *Index) Container(id string) (*Container, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c, err := resolve("container", x.containers, id)
	if err == nil && c.Making() {
		return nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
	}
	return c, err
}

// ByID returns the pod or the container that has an ID; nil where there is none.
func (x *Index) ByID(id string) (*Sandbox, *Container) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[id], x.containers[id]
}

// Has tells whether a pod or a container has an ID.
func (x *Index) Has(id string) bool {
	s, c := x.ByID(id)
	return s != nil || c != nil
}

// Sandboxes returns all pods, in no order.
func (x *Index) Sandboxes() []*Sandbox {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.AppendSeq(make([]*Sandbox, 0, len(x.pods)), maps.Values(x.pods))
}

// Empty tells whether there is no pod.
func (x *Index) Empty() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.pods) == 0
}

// Containers returns all containers, in no order.
func (x *Index) Containers() []*Container {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.AppendSeq(make([]*Container, 0, len(x.containers)), maps.Values(x.containers))
}

// ContainersOf returns the containers of a sandbox, in no order.
func (x *Index) ContainersOf(sandboxID string) []*Container {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Clone(x.members[sandboxID])
}

// addContainer puts a container into the lists. The caller holds x.mu.
func (x *Index) addContainer(c *Container) {
	pod := c.Sandbox.ID()
	x.dropContainer(c) // one that was known by this ID
	x.containers[c.ID()] = c
	x.members[pod] = append(x.members[pod], c)
}

// dropContainer takes the container with the ID of c out of the lists. The caller holds x.mu.
func (x *Index) dropContainer(c *Container) {
	known := x.containers[c.ID()]
	if known == nil {
		return
	}
	delete(x.containers, c.ID())
	pod := known.Sandbox.ID()
	others := slices.DeleteFunc(x.members[pod], func(o *Container) bool { return o == known })
	if x.members[pod] = others; len(others) == 0 {
		delete(x.members, pod)
	}
}

// Gone tells whether a pod was removed.
func (x *Index) Gone(s *Sandbox) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[s.ID()] != s
}

// GoneContainer tells whether a container was removed.
func (x *Index) GoneContainer(c *Container) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.containers[c.ID()] != c
}

// HasSandboxOf tells whether any sandbox belongs to the pod with a UID.
func (x *Index) HasSandboxOf(uid string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, s := range x.pods {
		if s.Status().Config.Metadata.UID == uid {
			return true
		}
	}
	return false
}

// AddSandbox gives a new pod its name and its creation time, and makes it known, with a lock that the caller may hold.
// A name that is taken is errdefs.ErrAlreadyExists.
func (x *Index) AddSandbox(table *record.Sandboxes, r record.Sandbox, op operation.Lock) (*Sandbox, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.nameSandbox(&r); err != nil {
		return nil, err
	}
	r.CreatedAt = x.sandboxCreated(r.Config.Metadata)
	s := NewSandbox(table.New(r.ID, r))
	s.op = op
	x.pods[s.ID()] = s
	return s, nil
}

// AddContainer does for a container of a pod what AddSandbox does for a pod.
func (x *Index) AddContainer(table *record.Containers, r record.Container, s *Sandbox,
	op operation.Lock) (*Container, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.nameContainer(&r); err != nil {
		return nil, err
	}
	r.CreatedAt = x.containerCreated(s, r.Config.Metadata.Name)
	c := NewContainer(table.New(r.ID, r), s)
	c.op = op
	x.addContainer(c)
	return c, nil
}

// AdoptSandbox makes a pod known whose record was loaded.
func (x *Index) AdoptSandbox(s *Sandbox) {
	r := s.Record()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pods[s.ID()] = s
	x.noteCreated(r.CreatedAt)
	x.names[sandboxName(r.Config.Metadata)] = s.ID()
}

// AdoptContainer makes a container known whose record was loaded.
func (x *Index) AdoptContainer(c *Container) {
	r := c.Record()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.addContainer(c)
	x.noteCreated(r.CreatedAt)
	x.names[containerName(r.SandboxID, r.Config.Metadata)] = c.ID()
}

// ForgetSandbox gives a pod's name back. Others, whose name it may have become, keep theirs.
func (x *Index) ForgetSandbox(s *Sandbox) {
	name := sandboxName(s.Record().Config.Metadata)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.pods, s.ID())
	if x.names[name] == s.ID() {
		delete(x.names, name)
	}
}

// ForgetContainer gives a container's name back.
func (x *Index) ForgetContainer(c *Container) {
	r := c.Record()
	name := containerName(r.SandboxID, r.Config.Metadata)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropContainer(c)
	if x.names[name] == c.ID() {
		delete(x.names, name)
	}
}

// reserve takes a name for an ID, or says which ID has it.
func (x *Index) reserve(kind, name, id string) error {
	if other, taken := x.names[name]; taken && other != id {
		return fmt.Errorf("%s name %s is taken by %s: %w", kind, strings.ReplaceAll(name, "\x00", "_"), record.ShortID(other),
			errdefs.ErrAlreadyExists)
	}
	x.names[name] = id
	return nil
}

// ContainerNames says which containers IDs are of, as messages name them.
func (x *Index) ContainerNames(ids []string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = record.ShortID(id)
		if c := x.containers[id]; c != nil {
			st := c.Status()
			pod := c.Sandbox.Status()
			names[i] = fmt.Sprintf("%s (%s) of pod %s/%s", st.Config.Metadata.Name, record.ShortID(id),
				pod.Config.Metadata.Namespace, pod.Config.Metadata.Name)
		}
	}
	return names
}
