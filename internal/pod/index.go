package pod

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod/operation"
	"berth/internal/pod/record"
)

// index is which pods and containers there are, and which names they have taken. Its methods may be called
// concurrently; those in name.go and order.go need the lock.
type index struct {
	mu         sync.RWMutex // guards what is below, not what the maps point to
	pods       map[string]*sandbox
	containers map[string]*container
	names      map[string]string // sandboxName or containerName to ID
	// lastCreated is the latest creation time of any pod or container.
	lastCreated time.Time
}

func newIndex() *index {
	return &index{pods: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{}}
}

// sandbox finds a pod by its ID or a prefix of it that no other has.
func (x *index) sandbox(id string) (*sandbox, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return resolve("pod sandbox", x.pods, id)
}

// container finds a container by its ID or a prefix of it that no other has.
func (x *index) container(id string) (*container, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return resolve("container", x.containers, id)
}

// byID returns the pod or the container that has an ID; nil where there is none.
func (x *index) byID(id string) (*sandbox, *container) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[id], x.containers[id]
}

// containersOf returns the containers of a sandbox, in no order.
func (x *index) containersOf(sandboxID string) []*container {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var list []*container
	for _, c := range x.containers {
		if c.sandbox.id == sandboxID {
			list = append(list, c)
		}
	}
	return list
}

// gone tells whether a pod was removed.
func (x *index) gone(s *sandbox) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[s.id] != s
}

// goneContainer tells whether a container was removed.
func (x *index) goneContainer(c *container) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.containers[c.id] != c
}

// hasSandboxOf tells whether any sandbox belongs to the pod with a UID.
func (x *index) hasSandboxOf(uid string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, s := range x.pods {
		if s.Status().Config.Metadata.UID == uid {
			return true
		}
	}
	return false
}

// addSandbox gives a new pod its name and its creation time, and makes it known, under a lock that the caller holds.
// A name that is taken is errdefs.ErrAlreadyExists.
func (x *index) addSandbox(table *record.Sandboxes, r record.Sandbox, op operation.Lock) (*sandbox, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.nameSandbox(&r); err != nil {
		return nil, err
	}
	r.CreatedAt = x.sandboxCreated(r.Config.Metadata)
	s := newSandbox(r.ID, table.New(r.ID, r))
	s.op = op
	x.pods[s.id] = s
	return s, nil
}

// addContainer does for a container of a pod what addSandbox does for a pod.
func (x *index) addContainer(table *record.Containers, r record.Container, s *sandbox, op operation.Lock) (*container, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.nameContainer(&r); err != nil {
		return nil, err
	}
	r.CreatedAt = x.containerCreated(s, r.Config.Metadata.Name)
	c := newContainer(r.ID, table.New(r.ID, r), s)
	c.op = op
	x.containers[c.id] = c
	return c, nil
}

// adoptSandbox makes a pod known whose record was loaded.
func (x *index) adoptSandbox(s *sandbox) {
	r := s.Record()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pods[s.id] = s
	x.noteCreated(r.CreatedAt)
	x.names[sandboxName(r.Config.Metadata)] = s.id
}

// adoptContainer makes a container known whose record was loaded.
func (x *index) adoptContainer(c *container) {
	r := c.Record()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.containers[c.id] = c
	x.noteCreated(r.CreatedAt)
	x.names[containerName(r.SandboxID, r.Config.Metadata)] = c.id
}

// forgetSandbox gives a pod's name back. Others, whose name it may have become, keep theirs.
func (x *index) forgetSandbox(s *sandbox) {
	name := sandboxName(s.Record().Config.Metadata)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.pods, s.id)
	if x.names[name] == s.id {
		delete(x.names, name)
	}
}

// forgetContainer gives a container's name back.
func (x *index) forgetContainer(c *container) {
	r := c.Record()
	name := containerName(r.SandboxID, r.Config.Metadata)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.containers, c.id)
	if x.names[name] == c.id {
		delete(x.names, name)
	}
}

// reserve takes a name for an ID, or says which ID has it.
func (x *index) reserve(kind, name, id string) error {
	if other, taken := x.names[name]; taken && other != id {
		return fmt.Errorf("%s name %s is taken by %s: %w", kind, strings.ReplaceAll(name, "\x00", "_"), record.ShortID(other),
			errdefs.ErrAlreadyExists)
	}
	x.names[name] = id
	return nil
}

// containerNames says which containers IDs are of, as messages name them.
func (x *index) containerNames(ids []string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = record.ShortID(id)
		if c := x.containers[id]; c != nil {
			st := c.Status()
			pod := c.sandbox.Status()
			names[i] = fmt.Sprintf("%s (%s) of pod %s/%s", st.Config.Metadata.Name, record.ShortID(id), pod.Config.Metadata.Namespace,
				pod.Config.Metadata.Name)
		}
	}
	return names
}
