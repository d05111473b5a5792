package namespace

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/mountns"
	"berth/internal/throwaway"
)

// Kind is a kind of namespace, by its name in /proc/PID/ns.
type Kind string

const (
	Network Kind = "net"
	IPC     Kind = "ipc"
	UTS     Kind = "uts"
	PID     Kind = "pid"
	User    Kind = "user"
)

var cloneFlags = map[Kind]int{Network: unix.CLONE_NEWNET, IPC: unix.CLONE_NEWIPC, UTS: unix.CLONE_NEWUTS}

// Set is the directory that holds a pod's pins, a file for each kind.
type Set struct {
	Dir string
	// Network is where a new network namespace is pinned instead, for programs of the node that look for network
	// namespaces in one directory. The file in Dir is a symbolic link to it. Empty: in Dir as well.
	Network string
}

// Path is the path of the file on which the namespace of a kind is pinned, or of a link to it.
func (s Set) Path(k Kind) string { return filepath.Join(s.Dir, string(k)) }

// Target is the path of the file on which the namespace of a kind is pinned, for others than Berth.
func (s Set) Target(k Kind) string {
	path := s.Path(k)
	if target, err := os.Readlink(path); err == nil {
		return target
	}
	return path
}

// place makes the file on which a namespace is to be pinned, and returns its path. The link is made first: by it,
// Remove finds what is elsewhere.
func (s Set) place(k Kind) (string, error) {
	path := s.Path(k)
	if k == Network && s.Network != "" {
		if err := os.MkdirAll(filepath.Dir(s.Network), 0o755); err != nil {
			return "", err
		}
		if err := os.Symlink(s.Network, path); errors.Is(err, os.ErrExist) {
			// A reboot leaves it where the directory is on a disk.
			if err = os.Remove(path); err == nil {
				err = os.Symlink(s.Network, path)
			}
			if err != nil {
				return "", err
			}
		} else if err != nil {
			return "", err
		}
		path = s.Network
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return "", err
	}
	return path, f.Close()
}

// Share makes a directory of pins, if it is not there, and sees to it that other mount namespaces see what is mounted
// in it: a network provider's pod that has mounted it with propagation finds the namespaces of later pods too. Where
// the mount that it is on is not shared, it becomes a mount of its own, as ip-netns(8) makes it. On a shared one, each
// pin would be mounted twice then. It is the node's directory, also where Berth's own mounts are in a namespace of
// their own.
func Share(dir string) error {
	if err := mountns.OnNode(func() error { return share(dir) }); err != nil {
		return err
	}
	if err := mountns.Bring(dir); err != nil {
		return fmt.Errorf("share the mounts in %s with the node: %w", dir, err)
	}
	return nil
}

func share(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) { // EINVAL: it is no mount yet
		return sharing(dir, err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if on, err := mountns.Above(real); err != nil || mountns.Shared(on) {
		return sharing(dir, err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return sharing(dir, err)
	}
	return sharing(dir, unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""))
}

func sharing(dir string, err error) error {
	if err != nil {
		return fmt.Errorf("share the mounts in %s: %w", dir, err)
	}
	return nil
}

// Options says what a Set holds.
type Options struct {
	Kinds    []Kind            // of Network, IPC and UTS
	User     *UserMappings     // a new user namespace that owns the others; nil: the node's owns them
	Hostname string            // set in the UTS namespace, where that is among Kinds
	Sysctls  map[string]string // written in the new namespaces: dots or slashes, as sysctl(8) takes them
}

// Create makes new namespaces and pins them. Either all are made or none is left.
func (s Set) Create(o Options) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	var flags int
	for _, k := range o.Kinds {
		f, ok := cloneFlags[k]
		if !ok {
			return fmt.Errorf("namespace %s cannot be made without a process", k)
		}
		flags |= f
	}
	var err error
	if o.User != nil {
		err = s.createOwned(flags, o)
	} else {
		err = throwaway.Thread(func() error { return s.createOnThread(flags, o) })
	}
	if err != nil {
		return errors.Join(err, s.Remove())
	}
	return nil
}

func (s Set) createOnThread(flags int, o Options) error {
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("unshare the pod's namespaces: %w", explain(err, o.Kinds...))
	}
	if err := configure(flags, o); err != nil {
		return err
	}
	for _, k := range o.Kinds {
		path, err := s.place(k)
		if err != nil {
			return err
		}
		if err := unix.Mount("/proc/thread-self/ns/"+string(k), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin the %s namespace: %w", k, err)
		}
	}
	return nil
}

// explain returns the error of a call that makes namespaces, and says which limits there are where one is reached: the
// kernel answers ENOSPC, which would be read as a full disk.
func explain(err error, kinds ...Kind) error {
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	var limits []string
	for _, k := range kinds {
		name := "max_" + string(k) + "_namespaces"
		if value, err := os.ReadFile("/proc/sys/user/" + name); err == nil {
			limits = append(limits, "user."+name+" is "+strings.TrimSpace(string(value)))
		}
	}
	return fmt.Errorf("the kernel allows no more namespaces (%s): %w", strings.Join(limits, ", "),
		errdefs.ErrResourceExhausted)
}

// Configure sets the host name and the sysctls of namespaces that Create has made without them. The node's user
// namespace owns those that get a host name or sysctls of IPC. Sysctls of interfaces (net.*.conf, net.*.neigh) that are
// for the interfaces to come have to be given to Create instead, where an interface is there already.
func (s Set) Configure(o Options) error {
	if o.Hostname == "" && len(o.Sysctls) == 0 {
		return nil
	}
	return throwaway.Thread(func() error {
		var flags int
		for _, k := range o.Kinds {
			pin, err := os.Open(s.Path(k))
			if err == nil {
				err = unix.Setns(int(pin.Fd()), cloneFlags[k])
				pin.Close()
			}
			if err != nil {
				return fmt.Errorf("join the %s namespace: %w", k, err)
			}
			flags |= cloneFlags[k]
		}
		return configure(flags, o)
	})
}

// SplitSysctls divides sysctls into those that new namespaces have from their beginning, and those of single network
// interfaces (net.*.conf.eth0, net.*.neigh.eth0), which are there once the interface is.
func SplitSysctls(sysctls map[string]string) (beginning, interfaces map[string]string) {
	beginning = sysctls
	for key, value := range sysctls {
		if !ofOneInterface(sysctlPath(key)) {
			continue
		}
		if interfaces == nil {
			beginning, interfaces = maps.Clone(sysctls), map[string]string{}
		}
		delete(beginning, key)
		interfaces[key] = value
	}
	return beginning, interfaces
}

// ofOneInterface: the path is /net/FAMILY/conf/INTERFACE/NAME or /net/FAMILY/neigh/INTERFACE/NAME. What all interfaces
// have, what those to come begin with and the loopback interface are there from the beginning.
func ofOneInterface(path string) bool {
	parts := strings.Split(path, "/")
	if len(parts) != 6 || parts[1] != "net" || parts[3] != "conf" && parts[3] != "neigh" {
		return false
	}
	return !slices.Contains([]string{"all", "default", "lo"}, parts[4])
}

// OfInterfaces tells whether one of the sysctls is of network interfaces, or is what interfaces to come begin with.
func OfInterfaces(sysctls map[string]string) bool {
	for key := range sysctls {
		path := sysctlPath(key)
		if strings.HasPrefix(path, "/net/") && (strings.Contains(path, "/conf/") || strings.Contains(path, "/neigh/")) {
			return true
		}
	}
	return false
}

// configure sets the host name and the sysctls of the namespaces that the calling thread is in.
func configure(flags int, o Options) error {
	if flags&unix.CLONE_NEWUTS != 0 && o.Hostname != "" {
		if err := unix.Sethostname([]byte(o.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", o.Hostname, err)
		}
	}
	// In an order that is always the same: some sysctls change others.
	for _, key := range slices.Sorted(maps.Keys(o.Sysctls)) {
		value := o.Sysctls[key]
		err := WriteSysctl(sysctlPath(key), value)
		if o.User != nil && errors.Is(err, os.ErrPermission) {
			err = o.User.asRoot(func() error { return WriteSysctl(sysctlPath(key), value) })
		}
		if err != nil {
			switch {
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
				err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
			case errors.Is(err, os.ErrPermission): // a read-only one, or one that this kernel has for the node alone
				err = fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
			}
			return fmt.Errorf("set sysctl %s to %q: %w", key, value, err)
		}
	}
	return nil
}

// sysctlPath turns a sysctl's name into a path below /proc/sys. As in sysctl(8), whichever separator comes first is the
// separator, so that net/ipv4/conf/eth0.1/mtu can be said.
func sysctlPath(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '/' {
		return filepath.Clean("/" + key)
	}
	swapped := strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, key)
	return filepath.Clean("/" + swapped)
}

// PinProcess pins a namespace that a process lives in.
func (s Set) PinProcess(k Kind, pid int) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	path, err := s.place(k)
	if err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/%s", pid, k), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin the %s namespace of process %d: %w", k, pid, err)
	}
	return nil
}

// Pinned tells whether the namespace of a kind is there: a path that is not a mount of nsfs (a reboot leaves such)
// is not.
func (s Set) Pinned(k Kind) bool {
	var fs unix.Statfs_t
	return unix.Statfs(s.Path(k), &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// Remove lets the namespaces go and removes the directory. It is idempotent.
func (s Set) Remove() error {
	paths := make([]string, 0, 7)
	if target := s.Target(Network); target != s.Path(Network) {
		paths = append(paths, target) // before the link by which it is found
	}
	if s.Network != "" && !slices.Contains(paths, s.Network) { // where somebody has removed the link
		paths = append(paths, s.Network)
	}
	paths = append(paths, s.Path(Network))
	errs := append(s.removeOthers(), unpin(paths)...)
	if err := os.Remove(s.Dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveOthers lets all namespaces but that of the network go. It is idempotent.
func (s Set) RemoveOthers() error { return errors.Join(s.removeOthers()...) }

func (s Set) removeOthers() []error {
	return unpin([]string{s.Path(IPC), s.Path(UTS), s.Path(PID), s.Path(User)})
}

// unpin lets the namespaces go that are pinned on the files, and removes these.
func unpin(paths []string) (errs []error) {
	for _, path := range paths {
		for { // a pin that a crash and a second start put one over the other goes in as many steps
			err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err == nil {
				continue
			}
			if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("unpin %s: %w", path, err))
			}
			break
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errs
}

// SetSysctls sets sysctls of the network namespace pinned at path.
func SetSysctls(path string, sysctls map[string]string) error {
	if len(sysctls) == 0 {
		return nil
	}
	return Do(path, func() error { return configure(unix.CLONE_NEWNET, Options{Sysctls: sysctls}) })
}

// Do runs f on a thread that is inside the network namespace pinned at path, as long as f stays on its own goroutine.
// An empty path is the node's own namespace.
func Do(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	return throwaway.Thread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join network namespace %s: %w", path, err)
		}
		return f()
	})
}
