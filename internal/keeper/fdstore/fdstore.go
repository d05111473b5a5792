// Package fdstore stores descriptors in the service manager's descriptor store, for the next keeper.
package fdstore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// Store is systemd's file descriptor store (sd_pid_notify_with_fds(3)): an escrow for the time when berthd and keeper
// are both gone. The unit sets FileDescriptorStoreMax=.
type Store struct {
	path string
	log  *slog.Logger
	// stuck says that the service manager has let a send run into its timeout, and has taken nothing since.
	stuck atomic.Bool

	mu     sync.Mutex
	stored map[string]map[protocol.Role]string // the names, by key and role
	given  map[string]map[protocol.Role]int    // what the service manager handed back, by key and role
}

const firstListenFD = 3 // SD_LISTEN_FDS_START

// Open is nil where no service manager asks to be notified.
func Open(log *slog.Logger) *Store {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	f := &Store{path: path, log: log, stored: map[string]map[protocol.Role]string{},
		given: map[string]map[protocol.Role]int{}}
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err == nil && pid == os.Getpid() {
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		for i := range n {
			fd := firstListenFD + i
			unix.CloseOnExec(fd)
			key, role, ok := "", protocol.Role(""), false
			if i < len(names) {
				key, role, ok = parseName(names[i])
			}
			if _, twice := f.given[key][role]; !ok || twice {
				unix.Close(fd)
				continue
			}
			if f.given[key] == nil {
				f.given[key], f.stored[key] = map[protocol.Role]int{}, map[protocol.Role]string{}
			}
			f.given[key][role] = fd
			f.stored[key][role] = names[i]
		}
	}
	// An upgrade in place executes this program again with the same environment.
	for _, k := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(k)
	}
	return f
}

// Notify tells the service manager something; failing that is no reason to stop.
func (f *Store) Notify(state string, fds ...int) {
	if err := f.notify(state, fds...); err != nil {
		f.warn("notify service manager", err)
	}
}

// errStuck is the error of a message that a service manager has not taken which hangs.
var errStuck = errors.New("it still takes nothing")

// warn logs an error of notify. Of a service manager that hangs, this is said once.
func (f *Store) warn(message string, err error, args ...any) {
	level := slog.LevelWarn
	if errors.Is(err, errStuck) {
		level = slog.LevelDebug
	}
	f.log.Log(context.Background(), level, message, append(args, "error", err)...)
}

// notify is Notify with its error. A service manager that hangs and reads nothing, as one that has crashed does, must
// not have the keeper hang. A start and an end of a container have a message for each descriptor, so one message waits
// until it times out, and the next ones do not wait until one of them is taken.
func (f *Store) notify(state string, fds ...int) error {
	// The net package passes no descriptors over a connected datagram socket.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(int64(protocol.SendTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	// A name that begins with @ is an abstract one.
	flags, stuck := 0, f.stuck.Load()
	if stuck {
		flags = unix.MSG_DONTWAIT
	}
	for {
		err = unix.Sendmsg(fd, []byte(state), oob, &unix.SockaddrUnix{Name: f.path}, flags)
		if err == unix.EINTR {
			continue
		}
		f.stuck.Store(err == unix.EAGAIN)
		if err == unix.EAGAIN && stuck {
			return errStuck
		}
		return os.NewSyscallError("sendmsg", err)
	}
}

// Keep stores the descriptors of a packet. They stay the caller's.
func (f *Store) Keep(p *protocol.Packet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := keyOf(p.ID)
	if f.stored[key] == nil {
		f.stored[key] = map[protocol.Role]string{}
	}
	for i, r := range p.Roles {
		if f.stored[key][r] == "" {
			// Without FDPOLL=0 the manager would drop a pidfd or a pipe as soon as the other side is gone.
			if err := f.notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+nameOf(key, r), p.FDs[i]); err != nil {
				f.warn("store a descriptor in the service manager", err, "id", p.ID)
				continue
			}
			f.stored[key][r] = nameOf(key, r)
		}
	}
}

// Release removes some descriptors of a container or exec, or all of them.
func (f *Store) Release(id string, roles ...protocol.Role) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release(keyOf(id), roles)
}

func (f *Store) release(key string, roles []protocol.Role) {
	if len(roles) == 0 {
		roles = slices.Collect(maps.Keys(f.stored[key]))
	}
	for _, r := range roles {
		if name := f.stored[key][r]; name != "" {
			f.Notify("FDSTOREREMOVE=1\nFDNAME=" + name)
			delete(f.stored[key], r)
		}
	}
	if len(f.stored[key]) == 0 {
		delete(f.stored, key)
	}
}

// Handed takes what the service manager handed back of a container.
func (f *Store) Handed(id string) map[protocol.Role]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.given[keyOf(id)]
	delete(f.given, keyOf(id))
	return m
}

// Discard closes what belongs to no container any more.
func (f *Store) Discard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, m := range f.given {
		for _, fd := range m {
			unix.Close(fd)
		}
		f.release(key, nil)
	}
	f.given = map[string]map[protocol.Role]int{}
}

// List lists what the service manager holds, for the program that takes the place of this one: names by key.
func (f *Store) List() map[string][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := map[string][]string{}
	for key, names := range f.stored {
		m[key] = slices.Sorted(maps.Values(names))
	}
	return m
}

// Restore takes over what List returned before an upgrade, also of a version that listed roles by ID.
func (f *Store) Restore(stored map[string][]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, names := range stored {
		for _, name := range names {
			if key, role, ok := parseName(name); ok {
				f.note(key, role, name)
			} else {
				f.note(keyOf(id), protocol.Role(name), longPrefix+id+"."+name)
			}
		}
	}
}

func (f *Store) note(key string, role protocol.Role, name string) {
	if f.stored[key] == nil {
		f.stored[key] = map[protocol.Role]string{}
	}
	f.stored[key][role] = name
}
