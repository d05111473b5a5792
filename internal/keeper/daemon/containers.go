package daemon

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// containers are the containers of the table, by ID.
type containers struct {
	mu        sync.Mutex
	byID      map[string]*container
	withdrawn withdrawn
}

// add puts a container on the table. It returns the one that has this ID already, and changes nothing then.
func (t *containers) add(c *container) (old *container) {
	old, _ = t.addIf(c, func() error { return nil })
	return old
}

// addNew is add for a container that is to be started: it is an error if the call that starts it was withdrawn.
func (t *containers) addNew(c *container) (old *container, err error) {
	return t.addIf(c, func() error { return t.withdrawn.check(c.record.Nonce) })
}

func (t *containers) addIf(c *container, may func() error) (old *container, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byID[c.id]; old != nil {
		return old, nil
	}
	if err := may(); err != nil {
		return nil, err
	}
	t.byID[c.id] = c
	return nil, nil
}

// remove takes a container off the table, whose record is gone.
func (t *containers) remove(c *container) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[c.id] == c {
		delete(t.byID, c.id)
	}
}

// get finds a container. The error is ErrNotFound.
func (t *containers) get(id string) (*container, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, ok := t.byID[id]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// all lists the containers.
func (t *containers) all() []*container {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*container, 0, len(t.byID))
	for _, c := range t.byID {
		list = append(list, c)
	}
	return list
}

// Owns says whether somebody waits for the process.
func (t *containers) Owns(pid int) bool { return t.Owned()[pid] }

// Owned are the processes that somebody waits for.
func (t *containers) Owned() map[int]bool {
	all := t.all()
	owned := make(map[int]bool, len(all))
	for _, c := range all {
		c.addOwned(owned)
	}
	return owned
}

// usedFilters are the keys of the seccomp filters that containers have, or are about to.
func (t *containers) usedFilters() map[string]bool {
	used := map[string]bool{}
	for _, c := range t.all() {
		c.mu.Lock()
		if c.record.Join != nil {
			used[c.record.Join.Filter] = true
		}
		used[c.filter] = true
		c.mu.Unlock()
	}
	return used
}
