package poddir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/dirtree"
	"berth/internal/manifest"
)

// DefaultRoot is the default directory of the directories of pods.
const DefaultRoot = "/var/lib/berth-cli"

// recordFile says whose a pod's directory is.
const recordFile = "pod.json"

// Record is whose a directory is.
type Record struct {
	Address   string `json:"address"` // of the runtime that runs the pod
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Applied is the directory of manifests that keeps the pod running; empty: there is none.
	Applied string `json:"applied,omitempty"`
}

func (r Record) directory() string { return r.Namespace + "_" + r.Name + "_" + r.UID }

// Store is the directories of all pods of one command line's data directory.
type Store struct {
	Root    string // absolute
	Address string // of the runtime that this command speaks to
}

func (s *Store) pods() string { return filepath.Join(s.Root, "pods") }

// lock keeps a sweep from removing a directory whose pod is not there yet: commands that make pods share the lock, and
// a sweep has it alone. The kernel releases it when the command ends, however it ends.
func (s *Store) lock(how int) (*os.File, error) {
	// Volumes hold whatever containers write, setuid programs included: nobody else may reach them but through a mount. An
	// earlier version let others pass.
	if err := os.MkdirAll(s.pods(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.pods(), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(s.Root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(file, how); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// flock locks an open file. The kernel releases the lock when the file is closed.
func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}

// LockIDs keeps other commands from choosing IDs for user namespaces, until release is called or this command ends,
// however it does. The IDs of a pod are known to others once its sandbox is there.
func (s *Store) LockIDs(ctx context.Context) (release func(), err error) {
	file, err := os.OpenFile(filepath.Join(s.Root, "ids.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(file, unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			file.Close()
			return nil, err
		}
		return func() { file.Close() }, nil
	case <-ctx.Done():
		go func() { // the file has to stay open as long as the system call uses it
			<-locked
			file.Close()
		}()
		return nil, ctx.Err()
	}
}

// Create makes the directory of a pod. No sweep touches it until made is called, which is once the pod exists,
// or once the directory has been removed again.
func (s *Store) Create(record Record) (dir *Dir, made func(), err error) {
	record.Address = s.Address
	lock, err := s.lock(unix.LOCK_SH)
	if err != nil {
		return nil, nil, err
	}
	dir = s.dir(record)
	release, err := dir.make(record)
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return dir, func() { release(); lock.Close() }, nil
}

// RemoveLost removes the directory of a pod whose sandbox somebody else has removed, so that the pod can be made anew
// under its UID. It waits for a command that is removing the pod just now. A directory that was made for another
// runtime, or for another directory of manifests, stays.
func (s *Store) RemoveLost(record Record) error {
	dir := s.dir(record)
	if dir.Path == "" {
		return nil
	}
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release()
	there, err := readRecord(dir.Path)
	if err == nil && (there.Address != s.Address || there.Applied != record.Applied) {
		return nil
	}
	return dir.Remove()
}

// Dir is the directory of a pod, made or not.
func (s *Store) Dir(namespace, name, uid string) *Dir {
	return s.dir(Record{Namespace: namespace, Name: name, UID: uid})
}

func (s *Store) dir(record Record) *Dir {
	if name := record.directory(); strings.ContainsAny(name, "/\x00") {
		return &Dir{} // of another client, which names pods as it likes
	}
	return &Dir{Path: filepath.Join(s.pods(), record.directory()), uid: record.UID}
}

// Owns says whether this command line has made a pod, and returns its directory. Its annotations alone do not tell: a
// kubelet passes on those that whoever made the pod has chosen. The directories are root's, and so nobody else can make
// one with the record of a pod.
func (s *Store) Owns(pod *cri.PodSandbox) (*Dir, bool) {
	meta, annotations := pod.GetMetadata(), pod.GetAnnotations()
	dir := s.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())
	if dir.Path == "" || annotations[manifest.AnnotationOwner] == "" ||
		annotations[manifest.AnnotationDirectory] != dir.Path {
		return nil, false
	}
	record, err := readRecord(dir.Path)
	return dir, err == nil && record.UID == meta.GetUid()
}

// NotOwnedError is a pod that is not removed, since this command line has not made it.
type NotOwnedError struct{ Pod, Root string }

func (e *NotOwnedError) Error() string {
	return fmt.Sprintf("pod %s is not one that `berth run` has made with --data-dir %s: if it is to go, `berth rm -f %s` "+
		"removes it", e.Pod, e.Root, e.Pod)
}

// Applied is the directory of manifests that keeps a pod running; empty: there is none. An annotation says so too, but
// others, such as a kubelet, make pods with any annotation. A record that cannot be read confirms nothing.
func (s *Store) Applied(namespace, name, uid string) string {
	dir := s.Dir(namespace, name, uid)
	if dir.Path == "" {
		return ""
	}
	record, err := readRecord(dir.Path)
	if err != nil || record.UID != uid || record.Address != s.Address {
		return ""
	}
	return record.Applied
}

// Sweep removes the directories of pods of this runtime that alive does not know by UID. Where another command
// is making a pod just now, it leaves all of them to the next sweep.
func (s *Store) Sweep(alive func() (map[string]bool, error)) error {
	entries, err := os.ReadDir(s.pods())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	lock, err := s.lock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	uids, err := alive() // asked under the lock: what is made later cannot be in the way
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(s.pods(), entry.Name())
		record, err := readRecord(path)
		if (errors.Is(err, fs.ErrNotExist) || torn(err)) && strings.Count(entry.Name(), "_") == 2 {
			// Its maker was killed before it could write the record, or its removal was cut short after the record went, or a
			// power failure has torn the record.
			record = Record{Address: s.Address, UID: uidOf(path)}
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		if record.Address != s.Address || uids[record.UID] {
			continue
		}
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}

func readRecord(path string) (Record, error) {
	var record Record
	data, err := os.ReadFile(filepath.Join(path, recordFile))
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(data, &record); err != nil {
		return record, fmt.Errorf("%s: %w", filepath.Join(path, recordFile), err)
	}
	return record, nil
}

// torn says whether an error of readRecord is about a record that a power failure has torn or emptied: earlier versions
// did not wait until it was on the disk.
func torn(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax)
}

// uidOf is the UID in the path of a pod's directory: no namespace and no name of a pod has a `_`.
func uidOf(path string) string {
	name := filepath.Base(path)
	return name[strings.LastIndexByte(name, '_')+1:]
}

// remove unmounts what is mounted below path and removes it. While anything is mounted there nothing is removed:
// it would be removed from what is mounted.
func remove(path string) error {
	// The kernel names mounts by paths without links, and the data directory may be one.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	for range 3 {
		infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		if err != nil {
			return err
		}
		if len(infos) == 0 {
			// The record goes last: without it nobody would know whose the rest is.
			return removeAll(path)
		}
		for i := len(infos) - 1; i >= 0; i-- {
			if err := unix.Unmount(infos[i].Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil &&
				!errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", infos[i].Mountpoint, err)
			}
		}
	}
	return fmt.Errorf("%s: something is mounted there again and again; it is left", path)
}

// removeAll removes what containers may have left in a pod's directory, and the directory.
func removeAll(path string) error {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range append(slices.DeleteFunc(names, func(n string) bool { return n == recordFile }), recordFile) {
		if err := dirtree.Remove(context.Background(), int(dir.Fd()), name); err != nil {
			return fmt.Errorf("remove %s: %w", filepath.Join(path, name), err)
		}
	}
	return os.Remove(path)
}
