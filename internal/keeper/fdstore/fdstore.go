// Package fdstore keeps descriptors with the service manager, for the next keeper.
package fdstore

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// Store is systemd's file descriptor store (sd_pid_notify_with_fds(3)): custody for the time when berthd and keeper
// are both gone. The unit sets FileDescriptorStoreMax=.
type Store struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	stored map[string]map[protocol.Role]bool
	given  map[string]map[protocol.Role]int // what the service manager handed back
}

const (
	firstListenFD = 3 // SD_LISTEN_FDS_START
	storePrefix   = "berth."
)

// Open is nil where no service manager asks to be notified.
func Open(log *slog.Logger) *Store {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	f := &Store{path: path, log: log, stored: map[string]map[protocol.Role]bool{}, given: map[string]map[protocol.Role]int{}}
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err == nil && pid == os.Getpid() {
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		for i := range n {
			fd := firstListenFD + i
			unix.CloseOnExec(fd)
			id, role, ok := "", "", false
			if i < len(names) {
				id, role, ok = splitName(names[i])
			}
			if _, twice := f.given[id][protocol.Role(role)]; !ok || twice {
				unix.Close(fd)
				continue
			}
			if f.given[id] == nil {
				f.given[id], f.stored[id] = map[protocol.Role]int{}, map[protocol.Role]bool{}
			}
			f.given[id][protocol.Role(role)] = fd
			f.stored[id][protocol.Role(role)] = true
		}
	}
	// An upgrade in place executes this program again with the same environment.
	for _, k := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(k)
	}
	return f
}

func storeName(id string, r protocol.Role) string { return storePrefix + id + "." + string(r) }

func splitName(name string) (id, role string, ok bool) {
	rest, ok := strings.CutPrefix(name, storePrefix)
	i := strings.LastIndexByte(rest, '.')
	if !ok || i <= 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// Notify tells the service manager something; failing that is no reason to stop.
func (f *Store) Notify(state string, fds ...int) {
	// The net package passes no descriptors over a connected datagram socket.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.log.Warn("notify service manager", "error", err)
		return
	}
	defer unix.Close(fd)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	// A name that begins with @ is an abstract one.
	for {
		err = unix.Sendmsg(fd, []byte(state), oob, &unix.SockaddrUnix{Name: f.path}, 0)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.log.Warn("notify service manager", "error", os.NewSyscallError("sendmsg", err))
	}
}

// Keep stores the descriptors of a packet. They stay the caller's.
func (f *Store) Keep(p *protocol.Packet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stored[p.ID] == nil {
		f.stored[p.ID] = map[protocol.Role]bool{}
	}
	for i, r := range p.Roles {
		if !f.stored[p.ID][r] {
			f.stored[p.ID][r] = true
			// Without FDPOLL=0 the manager would drop a pidfd or a pipe as soon as the other side is gone.
			f.Notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+storeName(p.ID, r), p.FDs[i])
		}
	}
}

// Release removes some descriptors of a container or exec, or all of them.
func (f *Store) Release(id string, roles ...protocol.Role) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(roles) == 0 {
		for r := range f.stored[id] {
			roles = append(roles, r)
		}
	}
	for _, r := range roles {
		if f.stored[id][r] {
			f.Notify("FDSTOREREMOVE=1\nFDNAME=" + storeName(id, r))
			delete(f.stored[id], r)
		}
	}
	if len(f.stored[id]) == 0 {
		delete(f.stored, id)
	}
}

// Handed takes what the service manager handed back of a container.
func (f *Store) Handed(id string) map[protocol.Role]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.given[id]
	delete(f.given, id)
	return m
}

// Discard closes what belongs to no container any more.
func (f *Store) Discard() {
	f.mu.Lock()
	var ids []string
	for id, m := range f.given {
		for _, fd := range m {
			unix.Close(fd)
		}
		ids = append(ids, id)
	}
	f.given = map[string]map[protocol.Role]int{}
	f.mu.Unlock()
	for _, id := range ids {
		f.Release(id)
	}
}

// List is what the service manager has, for the next image of this program.
func (f *Store) List() map[string][]protocol.Role {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := map[string][]protocol.Role{}
	for id, roles := range f.stored {
		for r := range roles {
			m[id] = append(m[id], r)
		}
	}
	return m
}

// Restore takes over what List returned before an upgrade.
func (f *Store) Restore(stored map[string][]protocol.Role) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, roles := range stored {
		f.stored[id] = map[protocol.Role]bool{}
		for _, r := range roles {
			f.stored[id][r] = true
		}
	}
}
