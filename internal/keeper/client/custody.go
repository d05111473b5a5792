package client

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// custody is what this process keeps for the keeper: a row and descriptors of every container and exec. The descriptors
// are raw numbers: a file of Go's would wake this process at each of a container's writes.
type custody struct {
	mu      sync.Mutex
	items   map[string]*item
	seen    map[string]bool // named by the keeper since the synchronisation began
	told    map[string]bool // execs whose end is known here before they have arrived
	begun   map[string]bool // execs whose program has begun, as the keeper's answer says
	changed chan struct{}   // closed when something arrives
	synced  chan struct{}   // closed when all that the first keeper has is here
	closed  bool
}

type item struct {
	row   json.RawMessage
	files map[protocol.Role]int
}

// keepsake is an item as a keeper that has died had left it, without its descriptors, which stay where they are.
type keepsake struct {
	id  string
	row json.RawMessage
}

func (c *custody) init() {
	c.items, c.told, c.begun = map[string]*item{}, map[string]bool{}, map[string]bool{}
	c.changed, c.synced = make(chan struct{}), make(chan struct{})
}

// keep takes the packet's descriptors in place of the ones it had.
func (c *custody) keep(p *protocol.Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(p.FDs) != len(p.Roles) {
		return
	}
	if c.told[p.ID] {
		delete(c.told, p.ID)
		return
	}
	it := c.items[p.ID]
	if it == nil {
		it = &item{files: map[protocol.Role]int{}}
		c.items[p.ID] = it
	}
	it.row = p.Row
	for i, r := range p.Roles {
		if old, ok := it.files[r]; ok {
			unix.Close(old)
		}
		it.files[r] = p.FDs[i]
	}
	p.FDs = nil
	if c.seen != nil {
		c.seen[p.ID] = true
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// release drops roles of an item, or all of it.
func (c *custody) release(id string, roles []protocol.Role) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.items[id]
	if it == nil {
		return
	}
	if len(roles) == 0 {
		c.drop(id)
		return
	}
	for _, r := range roles {
		if fd, ok := it.files[r]; ok {
			unix.Close(fd)
			delete(it.files, r)
		}
	}
}

// began notes that the program of an exec has begun: the keeper has given it into custody before that.
func (c *custody) began(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun[id] = true
}

// withBegun is a row of an exec, with what the keeper's answer says of it.
func withBegun(row json.RawMessage) json.RawMessage {
	var parsed map[string]map[string]json.RawMessage
	if err := json.Unmarshal(row, &parsed); err != nil || parsed["exec"] == nil {
		return row
	}
	parsed["exec"]["began"] = json.RawMessage("true")
	out, err := json.Marshal(parsed)
	if err != nil {
		return row
	}
	return out
}

// taken drops an exec whose end the keeper has told. What the keeper gave into custody may come after its answer.
func (c *custody) taken(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.begun, id)
	if c.items[id] != nil {
		c.drop(id)
	} else {
		c.told[id] = true
	}
}

func (c *custody) drop(id string) {
	for _, fd := range c.items[id].files {
		unix.Close(fd)
	}
	delete(c.items, id)
	delete(c.begun, id)
}

// beginSync starts to note what the keeper names. With the same keeper as before, what it does not name until endSync
// has gone while there was no connection; another one may know less than this process does.
func (c *custody) beginSync(same bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = nil
	clear(c.told)
	if same {
		c.seen = map[string]bool{}
	}
}

func (c *custody) endSync() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
	if c.seen == nil {
		return
	}
	for id := range c.items {
		if !c.seen[id] {
			c.drop(id)
		}
	}
	c.seen = nil
}

// all is everything, containers before their execs.
func (c *custody) all() []keepsake {
	c.mu.Lock()
	defer c.mu.Unlock()
	var containers, execs []keepsake
	for id, it := range c.items {
		k := keepsake{id: id, row: it.row}
		if c.begun[id] {
			k.row = withBegun(k.row)
		}
		if isExec(id) {
			execs = append(execs, k)
		} else {
			containers = append(containers, k)
		}
	}
	return append(containers, execs...)
}

// lend calls fn with an item's descriptors, which stay open meanwhile: duplicates of all would take as many descriptors again as this
// process has. It is false where the item has gone.
func (c *custody) lend(id string, fn func(roles []protocol.Role, fds []int) error) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.items[id]
	if it == nil {
		return false, nil
	}
	var roles []protocol.Role
	var fds []int
	for r, fd := range it.files {
		roles, fds = append(roles, r), append(fds, fd)
	}
	return true, fn(roles, fds)
}

func isExec(id string) bool {
	for i := range len(id) {
		if id[i] == '/' {
			return true
		}
	}
	return false
}

// has says whether an item is there; changed is closed when one arrives.
func (c *custody) has(id string) (ok bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok = c.items[id]
	return ok, c.changed
}

// input duplicates a container's input.
func (c *custody) input(id string) (*Input, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.items[id]
	if it == nil {
		return nil, fmt.Errorf("input of container %s: %w", id, errdefs.ErrNotFound)
	}
	fd, terminal := it.files[protocol.RoleConsole]
	if !terminal {
		var ok bool
		if fd, ok = it.files[protocol.RoleStdin]; !ok {
			return nil, fmt.Errorf("container %s has no open input: %w", id, errdefs.ErrFailedPrecondition)
		}
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return &Input{File: newFile(n, "input"), Terminal: terminal}, nil
}

func (c *custody) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for id := range maps.Clone(c.items) {
		c.drop(id)
	}
}

// newFile wraps a descriptor whose reads and writes wait in the poller.
func newFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}
