package pod

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/state"
)

// What leads to files of images, containers and pods is for root alone: a user of the node who could reach a setuid program of a
// container would run it with the rights that it has there. The one exception is a pod with a user namespace. Where libcontainer or an
// OCI runtime sets up its containers, the process that does it is the root of that user namespace already when it mounts the
// container's root file system by its path. So the root file systems of such a pod are mounted in its directory below Config.State,
// which the group of that root may pass; all that is above may be passed by everybody, and holds nothing but such directories.

// Directories of a pod below Config.State.
const (
	namespacesDir = "ns"
	filesDir      = "files"  // a tmpfs with the pod's files and its shared memory
	initDir       = "init"   // the root file system of the pod's init
	rootsDir      = "rootfs" // mount points of root file systems of a pod with a user namespace, by container
)

// layout is where things of pods and containers are in the file system.
type layout struct {
	root  string // Config.Root
	state string // Config.State
}

func (l *layout) pods() string       { return filepath.Join(l.root, "pods") }
func (l *layout) containers() string { return filepath.Join(l.root, "containers") }
func (l *layout) trash() string      { return filepath.Join(l.root, "trash") }

// netns is where the network namespace of a pod is pinned, if it has one.
func (l *layout) netns(id string) string { return l.namespaces(id).Path(namespace.Network) }

func (l *layout) namespaces(id string) namespace.Set {
	return namespace.Set{Dir: filepath.Join(l.statePod(id), namespacesDir)}
}

// container is the directory of a container, in which its record is.
func (l *layout) container(id string) string { return filepath.Join(l.containers(), id) }

// makeDirs makes the directories that all pods have in common, and takes from those that are there what an earlier version of
// Berth let others do.
func (l *layout) makeDirs(log *slog.Logger) error {
	for _, dir := range []string{l.pods(), l.containers(), l.trash()} {
		if err := state.MakeDir(dir, 0o700); err != nil {
			return err
		}
		if err := state.HideEntries(dir); err != nil {
			log.Error("a directory may be entered by others, though what it lies in may not", "in", dir, "error", err)
		}
	}
	if err := state.MakeDir(l.attachDir(), 0o700); err != nil {
		return err
	}
	// The keeper's files in it have no names. A name is left where it was killed between the making of a file and that. The directory
	// stays, since a disk that is full has no room for another.
	if err := emptyDir(l.attachDir()); err != nil {
		return err
	}
	if err := passable(l.state); err != nil {
		return err
	}
	return state.MakeDir(l.statePods(), 0o711)
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

// attachDir is where the keeper keeps what attached clients do not take.
func (l *layout) attachDir() string { return filepath.Join(l.root, "attach") }

func (l *layout) statePods() string { return filepath.Join(l.state, "pods") }

// statePod is where a pod keeps what a reboot may lose.
func (l *layout) statePod(id string) string { return filepath.Join(l.statePods(), id) }

// makeStatePod makes the directory of a pod below Config.State, or corrects the mode of the one that is there.
func (l *layout) makeStatePod(r *record.Sandbox) error {
	dir := l.statePod(r.ID)
	user := r.Config.UserNamespace()
	if user == nil {
		return state.MakeDir(dir, 0o700)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	gid, _ := model.HostID(user.GIDs, 0) // checkUserNamespace has seen to it that there is one
	if err := os.Chown(dir, 0, int(gid)); err != nil {
		return err
	}
	return os.Chmod(dir, 0o710)
}

// rootPath is where the root file system of a container is mounted.
func (l *layout) rootPath(pod *record.Sandbox, id string) string {
	if pod.Config.UserNamespace() == nil {
		return rootfs.Path(l.container(id))
	}
	return filepath.Join(l.statePod(pod.ID), rootsDir, id)
}

// unmountRoot unmounts the root file system of a container. It is idempotent.
func (st *storage) unmountRoot(pod *record.Sandbox, id string) error {
	at := st.dirs.rootPath(pod, id)
	if err := st.rootfs.Unmount(st.dirs.container(id), at); err != nil {
		return err
	}
	if pod.Config.UserNamespace() == nil {
		return nil // it goes with the container's directory
	}
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
