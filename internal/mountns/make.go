package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/throwaway"
)

// ErrUnsupported is for a node on which there can be no such namespace.
var ErrUnsupported = errors.New("a mount namespace of Berth's own is not possible")

// Check tells why this node cannot have such a namespace; nil: it can. The error is ErrUnsupported.
func Check() error {
	// Without descriptors, what is wrong with a call is either those or the flag.
	err := unix.MoveMount(-1, "", -1, "", joinGroup)
	if !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("%w: move_mount with MOVE_MOUNT_SET_GROUP, which takes Linux 5.15: %w", ErrUnsupported, err)
	}
	root, err := Above("/")
	if err != nil {
		return err
	}
	if !Shared(root) {
		return fmt.Errorf("%w: the mount at / is not shared, so that volumes which are mounted later would not be there "+
			"(mount --make-rshared /)", ErrUnsupported)
	}
	return nil
}

const joinGroup = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH | unix.MOVE_MOUNT_SET_GROUP

// Make makes the namespace and pins it. Mounts below the private directories, which are made where they are not there,
// stay in it. The caller stays in the namespace that it is in: see Enter. All or nothing: without the pin, the
// namespace ends with this call.
func Make(pin string, private []string) (err error) {
	if err := Check(); err != nil {
		return err
	}
	if err := preparePin(pin); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unmount(filepath.Dir(pin), unix.MNT_DETACH)
		}
	}()
	for _, dir := range private {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	mounts, err := holders(private)
	if err != nil {
		return err
	}
	defer func() {
		for _, m := range mounts {
			m.file.Close()
		}
	}()
	// The kernel refuses the pin of a namespace with a lower number than that of the one where the pin is. Since Linux
	// 6.18 each processor has a range of numbers of its own, so one processor may give numbers that are too low.
	var processors unix.CPUSet
	if err := unix.SchedGetaffinity(0, &processors); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	if err = makeOn(&processors, pin, private, mounts); !errors.Is(err, errPin) {
		return err
	}
	for cpu := range 8 * int(unsafe.Sizeof(processors)) {
		if !processors.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err = makeOn(&one, pin, private, mounts); !errors.Is(err, errPin) {
			return err
		}
	}
	return err
}

// errPin is for a namespace that the kernel lets nobody pin here.
var errPin = errors.New("pin the mount namespace")

// errMissed is for a namespace whose mounts are not those of the node.
var errMissed = errors.New("the node's mounts change while a copy of them is made")

// makeOn does it on one of some processors. What the node mounts or unmounts while one of its mounts is out of its peer
// group is missed: then it is done again.
func makeOn(processors *unix.CPUSet, pin string, private []string, mounts []*holder) (err error) {
	for range 20 {
		err = throwaway.Thread(func() error { return makeHere(processors, pin, private, mounts) })
		if !errors.Is(err, errMissed) {
			return err
		}
	}
	return err
}

// makeHere does it on the calling thread, which is in the namespace then.
func makeHere(processors *unix.CPUSet, pin string, private []string, mounts []*holder) error {
	if err := unix.SchedSetaffinity(0, processors); err != nil {
		return os.NewSyscallError("sched_setaffinity", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	for _, m := range mounts {
		if err := m.part(); err != nil {
			return err
		}
	}
	if err := compare(private); err != nil {
		return err
	}
	number, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	err = errors.Join(os.WriteFile(numberFile(pin), []byte(number), 0o600),
		os.WriteFile(privateFile(pin), []byte(strings.Join(private, "\n")), 0o600))
	if err != nil {
		return err
	}
	tid := unix.Gettid()
	// This thread is where the pin must not be.
	err = onAnother(func() error { return unix.Mount(fmt.Sprintf("/proc/%d/ns/mnt", tid), pin, "", unix.MS_BIND, "") })
	if err != nil {
		return fmt.Errorf("%w at %s: %w", errPin, pin, err)
	}
	return nil
}

// onAnother runs f on another thread than the caller's, which is locked: in the node's namespace.
func onAnother(f func() error) error {
	done := make(chan error)
	go func() { done <- f() }()
	return <-done
}

// compare tells whether the calling thread has the node's mounts: all that the node has before and after a look at its
// own, and none that the node has at neither time. A mount may come and go between the two, but not each time.
func compare(private []string) error {
	for range 10 {
		before, err := placesOnNode(private)
		if err != nil {
			return err
		}
		mounts, err := readMounts()
		if err != nil {
			return err
		}
		after, err := placesOnNode(private)
		if err != nil {
			return err
		}
		ours, same := places(mounts, private), true
		for at := range before {
			same = same && (ours[at] || !after[at])
		}
		for at := range ours {
			same = same && (before[at] || after[at])
		}
		if same {
			return nil
		}
	}
	return errMissed
}

func placesOnNode(private []string) (map[string]bool, error) {
	var mounts []*mountinfo.Info
	err := onAnother(func() (err error) {
		mounts, err = readMounts()
		return err
	})
	return places(mounts, private), err
}

// places are those of mounts that are the same in both namespaces: not the private ones, and no pins of namespaces,
// which the kernel does not have in all of them.
func places(mounts []*mountinfo.Info, private []string) map[string]bool {
	set := map[string]bool{}
	for _, m := range mounts {
		if m.FSType != "nsfs" && !slices.ContainsFunc(private, func(dir string) bool { return in(m.Mountpoint, dir) }) {
			set[place(m)] = true
		}
	}
	return set
}

// preparePin makes the file of the pin, on a private mount: the kernel refuses that a namespace gets a pin of itself by
// propagation.
func preparePin(pin string) error {
	dir := filepath.Dir(pin)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		return err
	}
	if !mounted { // else one that was killed has done it
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("make %s a mount: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount %s private: %w", dir, err)
	}
	f, err := os.OpenFile(pin, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return err
	}
	return f.Close()
}

// holder is a mount in which private directories are.
type holder struct {
	point string
	file  *os.File // its root, in the namespace of the caller; nil: it is not shared
	dirs  []string
}

// holders finds the mounts in which directories are.
func holders(dirs []string) ([]*holder, error) {
	var found []*holder
	byPoint := map[string]*holder{}
	for _, dir := range dirs {
		m, err := Above(dir)
		if err != nil {
			return nil, err
		}
		h := byPoint[m.Mountpoint]
		if h == nil {
			h = &holder{point: m.Mountpoint}
			if Shared(m) {
				if h.file, err = os.OpenFile(m.Mountpoint, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
					return nil, err
				}
			}
			byPoint[m.Mountpoint] = h
			found = append(found, h)
		}
		h.dirs = append(h.dirs, dir)
	}
	return found, nil
}

// part makes the directories private mounts in the calling thread's namespace, and in no other. The mount that holds
// them is out of its peer group meanwhile, so that they do not get to the node: what is mounted in it at that moment is
// not seen here (see compare).
func (h *holder) part() error {
	if h.file == nil {
		return nil // nothing propagates
	}
	if err := unix.Mount("", h.point, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount %s private: %w", h.point, err)
	}
	whole := false
	for _, dir := range h.dirs {
		if dir == h.point {
			whole = true
			continue
		}
		if err := cover(dir); err != nil {
			return fmt.Errorf("make %s a private mount: %w", dir, err)
		}
	}
	if whole {
		return nil
	}
	ours, err := unix.Open(h.point, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: h.point, Err: err}
	}
	defer unix.Close(ours)
	if err := unix.MoveMount(int(h.file.Fd()), "", ours, "", joinGroup); err != nil {
		return fmt.Errorf("make the mount %s a peer of the node's again: %w", h.point, err)
	}
	return nil
}

// cover mounts a directory over itself, privately, with the mounts in it.
func cover(dir string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return os.NewSyscallError("move_mount", err)
}
