// Package layout has the paths of pods and containers. Their records and writable layers are below a root directory
// that survives a reboot. Their namespaces, files and shared memory are below a state directory that does not.
//
// Only root may enter the directories that lead to files of images, containers and pods. Otherwise a local user could
// run a setuid program of a container. The one exception is a pod with a user namespace: if libcontainer or an OCI
// runtime sets up its containers, it mounts the container's root file system by path as the root user of that
// namespace. So the root file systems of such a pod are mounted in its directory below Dirs.State, which the group of
// that root user may enter. The directories above may be entered by everybody, and contain nothing but such
// directories.
package layout

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/state"
)

// Directories of a pod below Dirs.State.
const (
	namespacesDir = "ns"
	filesDir      = "files"  // a tmpfs with the pod's files and its shared memory
	initDir       = "init"   // the root file system of the pod's init
	rootsDir      = "rootfs" // mount points of root file systems of a pod with a user namespace, by container
)

// The files of a pod that its containers see in /etc.
const (
	HostsFile    = "hosts"
	ResolvFile   = "resolv.conf"
	HostnameFile = "hostname"
)

// Directories on a pod's tmpfs.
const (
	EtcDir = "etc"
	ShmDir = "shm"
)

// Directories of a container, beside its record.
const (
	volumesDir = "volumes" // the volumes that its image declares
	plainDir   = "plain"   // see Plain
)

// Dirs is where things of pods and containers are in the file system.
type Dirs struct {
	Root  string // records, writable layers
	State string // namespaces, files
	// NetNSDir is where network namespaces of new pods are pinned, each by NetNSName; empty: below State.
	NetNSDir string
	// Pins are the namespaces of a pod, pinned in a directory; nil: namespace.Set.
	Pins func(dir string) Namespaces
}

// Namespaces are the pinned namespaces of one pod.
type Namespaces interface {
	// Path is where the namespace of a kind is pinned, or a link to that. Target is that itself.
	Path(namespace.Kind) string
	Target(namespace.Kind) string
	// Create makes new namespaces and pins them, all or none.
	Create(namespace.Options) error
	// Configure gives namespaces that were made without them their host name and sysctls.
	Configure(namespace.Options) error
	// PinProcess pins a namespace that a process lives in.
	PinProcess(k namespace.Kind, pid int) error
	// Pinned tells whether the namespace of a kind is there.
	Pinned(namespace.Kind) bool
	// Remove lets the namespaces go, and RemoveOthers all but that of the network. Both are idempotent.
	Remove() error
	RemoveOthers() error
}

// Pods, Containers and Trash hold a directory of each pod, of each container, and of each that is to be removed.
func (l *Dirs) Pods() string       { return filepath.Join(l.Root, "pods") }
func (l *Dirs) Containers() string { return filepath.Join(l.Root, "containers") }
func (l *Dirs) Trash() string      { return filepath.Join(l.Root, "trash") }

// Volumes holds the named volumes.
func (l *Dirs) Volumes() string { return filepath.Join(l.Root, "volumes") }

// NetNS is where the network namespace of a pod is pinned, if it has one.
func (l *Dirs) NetNS(id string) string { return l.Namespaces(id).Target(namespace.Network) }

// NetNSName is the name of a pod's network namespace in Dirs.NetNSDir, as `ip netns` lists it.
func NetNSName(id string) string { return "berth-" + id }

// Namespaces are the pins of a pod's namespaces.
func (l *Dirs) Namespaces(id string) Namespaces {
	dir := filepath.Join(l.StatePod(id), namespacesDir)
	if l.Pins != nil {
		return l.Pins(dir)
	}
	set := namespace.Set{Dir: dir}
	if l.NetNSDir != "" {
		set.Network = filepath.Join(l.NetNSDir, NetNSName(id))
	}
	return set
}

// Container is the directory of a container, in which its record is.
func (l *Dirs) Container(id string) string { return filepath.Join(l.Containers(), id) }

// Make makes the directories that all pods have in common, and takes from those that are there what an earlier version
// of Berth let others do.
func (l *Dirs) Make() error {
	for _, dir := range []string{l.Pods(), l.Containers(), l.Trash()} {
		if err := state.MakeDir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := state.MakeDir(l.Attach(), 0o700); err != nil {
		return err
	}
	// The keeper's files in it have no names. A name is left where it was killed between the making of a file and that.
	// The directory stays, since a disk that is full has no room for another.
	if err := emptyDir(l.Attach()); err != nil {
		return err
	}
	if err := passable(l.State); err != nil {
		return err
	}
	return state.MakeDir(l.StatePods(), 0o711)
}

// Hide takes from the directories of single pods and containers what an earlier version of Berth let others do there,
// which only those can who have one of them open: Make has closed the directories above.
func (l *Dirs) Hide(log *slog.Logger) {
	for _, dir := range []string{l.Pods(), l.Containers(), l.Trash()} {
		if err := state.HideEntries(dir); err != nil {
			log.Error("close a directory to users other than root", "directory", dir, "error", err)
		}
	}
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// passable lets everybody pass a directory that also has the socket of the CRI in it, which may be a group's.
func passable(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&0o111 == 0o111 {
		return err
	}
	return os.Chmod(dir, info.Mode().Perm()|0o111)
}

// Attach is where the keeper keeps what attached clients do not take.
func (l *Dirs) Attach() string { return filepath.Join(l.Root, "attach") }

// StatePods is the directory that holds one of each pod below State.
func (l *Dirs) StatePods() string { return filepath.Join(l.State, "pods") }

// StatePod is where a pod keeps what a reboot may lose.
func (l *Dirs) StatePod(id string) string { return filepath.Join(l.StatePods(), id) }

// MakeStatePod makes the directory of a pod below State, or corrects the mode of the one that is there.
func (l *Dirs) MakeStatePod(r *record.Sandbox) error {
	dir := l.StatePod(r.ID)
	user := r.Config.UserNamespace()
	if user == nil {
		return state.MakeDir(dir, 0o700)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	gid, _ := model.HostID(user.GIDs, 0) // ocispec.CheckUserNamespace has seen to it that there is one
	if err := os.Chown(dir, 0, int(gid)); err != nil {
		return err
	}
	return os.Chmod(dir, 0o710)
}

// Barred adds to an error of a container's start that a directory above the root file systems of pods with user
// namespaces keeps their processes from getting there, if that may be why. Not all engines walk there by that path,
// so nothing is refused before.
func (l *Dirs) Barred(r *record.Sandbox, err error) error {
	user := r.Config.UserNamespace()
	if err == nil || user == nil || !strings.Contains(err.Error(), unix.EACCES.Error()) {
		return err
	}
	uid, _ := model.HostID(user.UIDs, 0)
	gid, _ := model.HostID(user.GIDs, 0)
	dir, mode := fileattr.Barring(l.State, uid, gid)
	if dir == "" {
		return err
	}
	return fmt.Errorf(
		"%w (the root of the pod's user namespace, user %d of the node, cannot pass the directory %s of mode %#o: "+
			"chmod o+x %s, or set state to a directory that all may reach)", err, uid, dir, mode, dir)
}

// Rootfs is where the root file system of a container is mounted.
func (l *Dirs) Rootfs(pod *record.Sandbox, id string) string {
	if pod.Config.UserNamespace() == nil {
		return rootfs.Path(l.Container(id))
	}
	return filepath.Join(l.StatePod(pod.ID), rootsDir, id)
}

// Files is where the tmpfs of a pod is mounted, and File one of the files on it.
func (l *Dirs) Files(id string) string { return filepath.Join(l.StatePod(id), filesDir) }

func (l *Dirs) File(id, name string) string {
	return filepath.Join(l.Files(id), EtcDir, name)
}

// Shm is the directory that containers of a pod see as /dev/shm.
func (l *Dirs) Shm(r *record.Sandbox) string {
	if !r.SharedTmpfs {
		return l.EarlierShm(r.ID)
	}
	return filepath.Join(l.Files(r.ID), ShmDir)
}

// EarlierShm is where an earlier version of Berth mounted a tmpfs for /dev/shm alone.
func (l *Dirs) EarlierShm(id string) string { return filepath.Join(l.StatePod(id), ShmDir) }

// InitRoot is the root file system of a pod's init.
func (l *Dirs) InitRoot(id string) string { return filepath.Join(l.StatePod(id), initDir) }

// NamespacePaths are the pins of a pod's shared namespaces; empty where it lives in the node's.
func (l *Dirs) NamespacePaths(r *record.Sandbox) ocispec.Namespaces {
	set := l.Namespaces(r.ID)
	var n ocispec.Namespaces
	if !r.NodeNetwork() {
		n.Network = set.Target(namespace.Network)
		n.UTS = set.Path(namespace.UTS)
	}
	if r.Config.OwnIPC() {
		n.IPC = set.Path(namespace.IPC)
	}
	if r.Config.UserNamespace() != nil {
		n.User = set.Path(namespace.User)
	}
	return n
}

// Mounts are the files and directories on the host that every container of a pod has.
func (l *Dirs) Mounts(r *record.Sandbox) map[string]string {
	mounts := map[string]string{
		"/etc/hosts":       l.File(r.ID, HostsFile),
		"/etc/resolv.conf": l.File(r.ID, ResolvFile),
		"/etc/hostname":    l.File(r.ID, HostnameFile),
	}
	if r.Config.OwnIPC() {
		mounts["/dev/shm"] = l.Shm(r)
	}
	return mounts
}

// LostNamespace is a namespace that a pod's record promises and that is not there, such as "net namespace"; empty: all
// are there. After a reboot they are not.
func (l *Dirs) LostNamespace(r *record.Sandbox) string {
	set := l.Namespaces(r.ID)
	for _, part := range []struct {
		kind     namespace.Kind
		promised bool
	}{
		{namespace.Network, !r.NodeNetwork()},
		{namespace.UTS, !r.NodeNetwork()},
		{namespace.IPC, r.Config.OwnIPC()},
		{namespace.User, r.Config.UserNamespace() != nil},
		{namespace.PID, r.Config.Security.Namespaces.PID == model.NamespacePod},
	} {
		if part.promised && !set.Pinned(part.kind) {
			return string(part.kind) + " namespace"
		}
	}
	return ""
}

// ImageVolume is the directory of the volume that a container's image declares, by its place in ImageVolumes.
func (l *Dirs) ImageVolume(id string, i int) string {
	return filepath.Join(l.ImageVolumes(id), strconv.Itoa(i))
}

// Plain is where the image of a container is mounted with the owners that it has there, while a named volume is filled
// from it.
func (l *Dirs) Plain(id string) string { return filepath.Join(l.Container(id), plainDir) }

// Image is where the image of a container's mount is mounted, by the mount's place among all of them.
func (l *Dirs) Image(id string, i int) string {
	return filepath.Join(l.Container(id), "image-"+strconv.Itoa(i))
}

// ImageVolumes is the directory of all volumes that a container's image declares.
func (l *Dirs) ImageVolumes(id string) string { return filepath.Join(l.Container(id), volumesDir) }

// IsRootfs tells whether a path is where the root file system of a container is mounted in its pod's directory,
// whichever pod that is.
func (l *Dirs) IsRootfs(path, id string) bool {
	return filepath.Base(path) == id && filepath.Base(filepath.Dir(path)) == rootsDir
}
