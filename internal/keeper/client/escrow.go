package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// escrow is the escrow that this process holds for the keeper: a record and descriptors of every container and exec.
// The descriptors are raw numbers: a file of Go's would wake this process at each of a container's writes.
type escrow struct {
	mu      sync.Mutex
	items   map[string]*item
	seen    map[string]bool // named by the keeper since the synchronisation began
	told    told            // execs whose end is known here before they have arrived
	begun   map[string]bool // execs whose program has begun, as the keeper's answer says
	cut     map[string]bool // items whose descriptors found no room here
	refused map[string]bool // items that the keeper does not know: it was not handed them, or has refused them
	changed chan struct{}   // closed when something arrives
	synced  chan struct{}   // closed when all that the first keeper has is here
	closed  bool
}

type item struct {
	record json.RawMessage
	files  map[protocol.Role]int
}

// told are execs by ID. Most are taken out in a moment. An exec whose time was over before its program began does not
// arrive: it is forgotten as later ones are added, after toldFor at the earliest.
type told struct {
	now, before map[string]bool
	since       time.Time // of the first one in now
}

// toldFor is much longer than a packet of the keeper's can be on its way: a client that takes none is cut off before
// that (protocol.SendTimeout).
const toldFor = time.Minute

func (t *told) add(id string) {
	if time.Since(t.since) > toldFor {
		t.now, t.before, t.since = map[string]bool{}, t.now, time.Now()
	}
	t.now[id] = true
}

// take takes an exec out, and says whether it was there.
func (t *told) take(id string) bool {
	there := t.now[id] || t.before[id]
	delete(t.now, id)
	delete(t.before, id)
	return there
}

// escrowed is an item as a keeper that has died left it. Its descriptors stay in the item: see lend.
type escrowed struct {
	id     string
	record json.RawMessage
}

func (e *escrow) init() {
	e.items, e.begun = map[string]*item{}, map[string]bool{}
	e.cut, e.refused = map[string]bool{}, map[string]bool{}
	e.changed, e.synced = make(chan struct{}), make(chan struct{})
}

// keep takes the packet's descriptors in place of the ones it had.
func (e *escrow) keep(p *protocol.Packet) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(p.FDs) != len(p.Roles) && !p.Cut {
		return
	}
	if e.told.take(p.ID) {
		return
	}
	if p.Cut {
		e.cut[p.ID] = true
		return
	}
	delete(e.cut, p.ID)
	it := e.items[p.ID]
	if it == nil {
		it = &item{files: map[protocol.Role]int{}}
		e.items[p.ID] = it
	}
	it.record = p.Record
	for i, r := range p.Roles {
		if old, ok := it.files[r]; ok {
			unix.Close(old)
		}
		it.files[r] = p.FDs[i]
	}
	p.FDs = nil
	if e.seen != nil {
		e.seen[p.ID] = true
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// release drops roles of an item, or all of it.
func (e *escrow) release(id string, roles []protocol.Role) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(roles) == 0 {
		delete(e.cut, id)
	}
	it := e.items[id]
	if it == nil {
		return
	}
	if len(roles) == 0 {
		e.drop(id)
		return
	}
	for _, r := range roles {
		if fd, ok := it.files[r]; ok {
			unix.Close(fd)
			delete(it.files, r)
		}
	}
}

// began notes that the program of an exec has begun: the keeper has put the exec into escrow before that.
func (e *escrow) began(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begun[id] = true
}

// refuse notes that a keeper does not take an item back, and so does not know it. known undoes that.
func (e *escrow) refuse(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused[id] = true
}

func (e *escrow) known(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.refused, id)
}

// isRefused says, once, whether a keeper has refused to take an item back.
func (e *escrow) isRefused(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	refused := e.refused[id]
	delete(e.refused, id)
	return refused
}

// withBegun is a record of an exec, with what the keeper's answer says of it.
func withBegun(record json.RawMessage) json.RawMessage {
	var parsed map[string]map[string]json.RawMessage
	if err := json.Unmarshal(record, &parsed); err != nil || parsed["exec"] == nil {
		return record
	}
	parsed["exec"]["began"] = json.RawMessage("true")
	out, err := json.Marshal(parsed)
	if err != nil {
		return record
	}
	return out
}

// taken drops an exec whose end the keeper has told. What the keeper puts into escrow may arrive after that answer.
func (e *escrow) taken(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.begun, id)
	if e.cut[id] {
		delete(e.cut, id)
		return
	}
	if e.items[id] != nil {
		e.drop(id)
	} else {
		e.told.add(id)
	}
}

func (e *escrow) drop(id string) {
	for _, fd := range e.items[id].files {
		unix.Close(fd)
	}
	delete(e.items, id)
	delete(e.begun, id)
}

// beginSync starts to note what the keeper names. With the same keeper as before, what it does not name until endSync
// has gone while there was no connection; another one may know less than this process does.
func (e *escrow) beginSync(same bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = nil
	e.told = told{}
	if same {
		e.seen = map[string]bool{}
	}
}

func (e *escrow) endSync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.synced:
	default:
		close(e.synced)
	}
	if e.seen == nil {
		return
	}
	for id := range e.items {
		if !e.seen[id] {
			e.drop(id)
		}
	}
	e.seen = nil
}

// all is everything, containers before their execs, and in the order of their IDs: an error that comes again is the
// same. What should be here and is not, the next keeper does not know.
func (e *escrow) all() []escrowed {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.Copy(e.refused, e.cut)
	clear(e.cut)
	var containers, execs []escrowed
	for _, id := range slices.Sorted(maps.Keys(e.items)) {
		k := escrowed{id: id, record: e.items[id].record}
		if e.begun[id] {
			k.record = withBegun(k.record)
		}
		if isExec(id) {
			execs = append(execs, k)
		} else {
			containers = append(containers, k)
		}
	}
	return append(containers, execs...)
}

// lend calls fn with an item's descriptors, which stay open meanwhile: duplicates of all would take as many descriptors
// again as this process has. It is false where the item has gone.
func (e *escrow) lend(id string, fn func(roles []protocol.Role, fds []int) error) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	it := e.items[id]
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
func (e *escrow) has(id string) (ok bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok = e.items[id]
	return ok, e.changed
}

// input duplicates a container's input.
func (e *escrow) input(id string) (*Input, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	it := e.items[id]
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

// signal sends a signal to the process of an item. A process that has exited needs none. sent is false where the
// process is not here, or where the kernel lets only the keeper signal it: berthd may have less rights, or be in
// another PID namespace.
func (e *escrow) signal(id string, sig syscall.Signal) (sent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	it := e.items[id]
	if it == nil {
		return false
	}
	fd, held := it.files[protocol.RolePidfd]
	if !held || sig == unix.SIGSTOP && proxied(it.record) {
		return false
	}
	err := unix.PidfdSendSignal(fd, sig, nil, 0)
	return err == nil || errors.Is(err, unix.ESRCH)
}

// proxied tells whether a record is that of a container with a proxy: that is the process here, which passes signals
// on, but for those that it cannot catch.
func proxied(js json.RawMessage) bool {
	var r struct {
		Container struct {
			Sandbox string
			Shim    *struct{}
		}
	}
	return json.Unmarshal(js, &r) == nil && (r.Container.Sandbox != "" || r.Container.Shim != nil)
}

func (e *escrow) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for id := range maps.Clone(e.items) {
		e.drop(id)
	}
}

// newFile wraps a descriptor whose reads and writes wait in the poller.
func newFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}
