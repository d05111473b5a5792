package poddir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/disk"
	"berth/internal/manifest"
)

// Dir is the directory of one pod. One without a path is of a pod that can have none here.
type Dir struct {
	Path string
	uid  string
}

// make makes the directory, which stays locked until release is called.
func (d *Dir) make(record Record) (release func(), err error) {
	if d.Path == "" {
		return nil, fmt.Errorf("the name of pod %s/%s cannot be the name of a directory", record.Namespace, record.Name)
	}
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return nil, err
	}
	if release, err = d.Lock(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(record, "", "  ")
	if err == nil {
		// Without the record, `apply` would not know its pod after a power failure.
		err = disk.WriteFileSynced(filepath.Join(d.Path, recordFile), append(data, '\n'), 0o600)
	}
	if err == nil {
		err = os.Mkdir(d.Logs(), 0o750)
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// interruptedFile says when a shutdown of the system began to stop the pod.
const interruptedFile = "interrupted"

// Interrupt notes that a shutdown of the system stops the pod from now on.
func (d *Dir) Interrupt(now time.Time) error {
	return disk.WriteFileSynced(filepath.Join(d.Path, interruptedFile), []byte(now.Format(time.RFC3339Nano)+"\n"), 0o600)
}

// Interrupted is when a shutdown of the system began to stop the pod; zero: none did.
func (d *Dir) Interrupted() time.Time {
	data, err := os.ReadFile(filepath.Join(d.Path, interruptedFile))
	if err != nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(string(data)))
	if err != nil {
		return time.Time{}
	}
	return at
}

// GoOn notes that the pod runs on after a shutdown that did not stop it.
func (d *Dir) GoOn() error {
	err := os.Remove(filepath.Join(d.Path, interruptedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Logs is the directory of the pod's logs.
func (d *Dir) Logs() string { return filepath.Join(d.Path, "logs") }

// Log is the path of an attempt's log.
func (d *Dir) Log(container string, attempt int) string {
	return filepath.Join(d.Logs(), container, strconv.Itoa(attempt)+".log")
}

// messages is the kind of the pod's own files to which attempts may write why they have ended, and the directory in
// which an earlier version had them.
const messages = "messages"

// Message is the path of the file to which an attempt may write why it has ended.
func (d *Dir) Message(container string, attempt int) string {
	paths := d.messagePaths(container, attempt)
	if _, err := os.Lstat(paths[1]); err == nil {
		return paths[1]
	}
	return paths[0]
}

// messagePaths are where the file of an attempt is, and where it is in the directory of a pod of an earlier version.
func (d *Dir) messagePaths(container string, attempt int) []string {
	name := filepath.Join(container, strconv.Itoa(attempt))
	return []string{filepath.Join(d.ownFiles(messages), name), filepath.Join(d.Path, messages, name)}
}

// IsMessage says whether a path is that of an attempt's message.
func (d *Dir) IsMessage(path, container string, attempt int) bool {
	return slices.Contains(d.messagePaths(container, attempt), path)
}

// MakeLog makes the place of a container's log and returns its path relative to Logs.
func (d *Dir) MakeLog(container string, attempt int) (string, error) {
	if err := os.MkdirAll(filepath.Join(d.Logs(), container), 0o750); err != nil {
		return "", err
	}
	return filepath.Join(container, strconv.Itoa(attempt)+".log"), nil
}

// Lock waits until no other command has locked the directory, and keeps others waiting until release is called or this
// command ends, however it does. Who makes a pod holds the lock until the sandbox is there, and who removes the
// directory holds it while they see that no sandbox of the pod is left: `apply` makes a pod anew under its UID, and so
// with a directory at the same path. Where there is no directory, nothing is locked.
func (d *Dir) Lock() (release func(), err error) {
	none := func() {}
	if d.Path == "" {
		return none, nil
	}
	for {
		file, err := os.OpenFile(d.Path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return none, nil
		}
		if err != nil {
			return nil, err
		}
		if err := flock(file, unix.LOCK_EX); err != nil {
			file.Close()
			return nil, err
		}
		locked, err := file.Stat()
		var there os.FileInfo
		if err == nil {
			there, err = os.Lstat(d.Path)
		}
		switch {
		case err == nil && os.SameFile(locked, there):
			return func() { file.Close() }, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			file.Close()
			return nil, err
		}
		file.Close() // it was removed while this command waited for the lock
	}
}

// Remove removes the directory with all that is mounted in it. One that is not there is removed already;
// one that belongs to another pod is an error.
func (d *Dir) Remove() error {
	if d.Path == "" {
		return nil
	}
	record, err := readRecord(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return removeAll(d.Path)
	}
	if torn(err) {
		record.UID, err = uidOf(d.Path), nil
	}
	if err != nil {
		return err
	}
	if record.UID != d.uid {
		return fmt.Errorf("%s belongs to pod %s, not to %s", d.Path, record.UID, d.uid)
	}
	return remove(d.Path)
}

// Volumes maps the names of a pod's volumes to what they are on the host.
type Volumes map[string]Volume

// Volume is a volume of a pod on the host.
type Volume struct {
	Path     string
	ReadOnly bool // for all containers, whatever their mounts say
	// Own: it is in the pod's directory. Under SELinux its files get the label of the containers that mount it.
	Own bool
	// Named, in place of Path, is the name of a volume of the daemon.
	Named string
	// Image, in place of Path, is the ID of an image.
	Image string
}

// MakeVolumes makes the volumes of a pod and checks its hostPaths. group, where there is one, owns all volumes but
// hostPaths. memory is how much a volume in memory may hold, in bytes; 0: as much as the kernel says. content returns
// what a volume of a manifest's own content holds.
func (d *Dir) MakeVolumes(volumes []corev1.Volume, group *int64, memory int64,
	content func(*corev1.Volume) (*Content, error)) (Volumes, error) {
	paths := d.Volumes(volumes)
	for _, volume := range volumes {
		path := paths[volume.Name].Path
		var err error
		switch {
		case volume.Image != nil, volume.PersistentVolumeClaim != nil:
			continue // the daemon has them
		case volume.HostPath != nil:
			err = checkHostPath(volume.HostPath)
		case volume.EmptyDir != nil:
			err = makeEmptyDir(path, volume.EmptyDir, group, memory)
		case manifest.HasFiles(volume.VolumeSource):
			var holds *Content
			if holds, err = content(&volume); err == nil {
				err = makeFiles(path, holds, group)
			}
		default:
			err = errors.New("its source is not supported")
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
	}
	return paths, nil
}

// Volumes are the places that MakeVolumes gives the volumes of a pod. Those that the daemon has are not among them.
func (d *Dir) Volumes(volumes []corev1.Volume) Volumes {
	paths := Volumes{}
	for _, volume := range volumes {
		switch {
		case volume.Image != nil, volume.PersistentVolumeClaim != nil:
		case volume.HostPath != nil:
			paths[volume.Name] = Volume{Path: volume.HostPath.Path}
		default:
			paths[volume.Name] = Volume{Path: filepath.Join(d.Path, "volumes", volume.Name),
				ReadOnly: manifest.HasFiles(volume.VolumeSource), Own: true}
		}
	}
	return paths
}

func makeEmptyDir(path string, source *corev1.EmptyDirVolumeSource, group *int64, memory int64) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if source.Medium == corev1.StorageMediumMemory {
		if limit := source.SizeLimit; limit != nil && limit.Sign() > 0 && (memory == 0 || limit.Value() < memory) {
			memory = limit.Value()
		}
		if err := mountMemory(path, memory); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o777)
	if group != nil {
		if err := os.Chown(path, -1, int(*group)); err != nil {
			return err
		}
		mode |= os.ModeSetgid
	}
	return os.Chmod(path, mode) // whatever the umask is
}

// checkHostPath makes or checks what a hostPath names, by its type. Without a type there is no check, as in a kubelet:
// the runtime makes a directory where there is nothing, or refuses the container.
func checkHostPath(source *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(source.Path, 0o755); err != nil {
			return fmt.Errorf("hostPath: %w", err)
		}
		kind = corev1.HostPathDirectory
	case corev1.HostPathFileOrCreate:
		file, err := os.OpenFile(source.Path, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o644)
		if err != nil && !errors.Is(err, unix.EISDIR) {
			return fmt.Errorf("hostPath: %w", err)
		}
		if err == nil {
			file.Close()
		}
		kind = corev1.HostPathFile
	}
	info, err := os.Stat(source.Path)
	if err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	mode := info.Mode()
	right := map[corev1.HostPathType]bool{
		corev1.HostPathDirectory: mode.IsDir(),
		corev1.HostPathFile:      mode.IsRegular(),
		corev1.HostPathSocket:    mode&os.ModeSocket != 0,
		corev1.HostPathCharDev:   mode&os.ModeCharDevice != 0,
		corev1.HostPathBlockDev:  mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0,
	}
	if !right[kind] {
		return fmt.Errorf("hostPath %s is not a %s (%s)", source.Path, kind, mode)
	}
	return nil
}

// Mounts are the mounts of an attempt of a container. expand replaces variables in subPathExpr.
func (d *Dir) Mounts(container string, attempt int, mounts []corev1.VolumeMount, volumes Volumes,
	expand func(string) (string, error)) ([]*cri.Mount, error) {
	var all []*cri.Mount
	for i, mount := range mounts {
		volume, ok := volumes[mount.Name]
		if !ok {
			return nil, fmt.Errorf("there is no volume %q", mount.Name)
		}
		source := volume.Path
		sub, err := subPath(&mount, expand)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", mount.Name, err)
		}
		if sub != "" && volume.Image == "" {
			target := filepath.Join(d.subPaths(container, attempt), strconv.Itoa(i))
			if source, err = d.pinSubPath(target, source, sub); err != nil {
				return nil, fmt.Errorf("volume %s: subPath %s: %w", mount.Name, sub, err)
			}
		}
		m := &cri.Mount{ContainerPath: mount.MountPath, HostPath: source,
			Readonly: mount.ReadOnly || volume.ReadOnly, SelinuxRelabel: volume.Own, MountOptions: mount.BindMountOptions}
		switch {
		case volume.Image != "":
			m.Image, m.ImageSubPath, m.Readonly = &cri.ImageSpec{Image: volume.Image}, sub, true
		case volume.Named != "":
			if err := name(m, volume.Named); err != nil {
				return nil, err
			}
		}
		if mount.RecursiveReadOnly != nil && *mount.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
			m.RecursiveReadOnly = true
		}
		if p := mount.MountPropagation; p != nil {
			switch *p {
			case corev1.MountPropagationHostToContainer:
				m.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			case corev1.MountPropagationBidirectional:
				m.Propagation = cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// subPath is the path inside the volume that a mount shows; empty: all of it. What variables have made of it is checked
// here, because only they are not in the manifest.
func subPath(mount *corev1.VolumeMount, expand func(string) (string, error)) (string, error) {
	if mount.SubPathExpr == "" {
		return mount.SubPath, nil
	}
	sub, err := expand(mount.SubPathExpr)
	if err == nil && !manifest.LocalPath(sub) {
		err = fmt.Errorf("%q is not a path inside the volume", sub)
	}
	if err != nil {
		return "", fmt.Errorf("subPathExpr %s: %w", mount.SubPathExpr, err)
	}
	return sub, nil
}

// name makes a mount one of a named volume. The field is PouchContainer's, and unknown to the messages of v1.
func name(m *cri.Mount, volume string) error {
	bytes, err := proto.Marshal(&pouch.Mount{Name: volume})
	if err == nil {
		m.ProtoReflect().SetUnknown(bytes)
	}
	return err
}

// HasNamed says whether a mount is one of a named volume.
func HasNamed(mounts []*cri.Mount) bool {
	return slices.ContainsFunc(mounts, func(m *cri.Mount) bool { return len(m.ProtoReflect().GetUnknown()) > 0 })
}

func (d *Dir) subPaths(container string, attempt int) string {
	return filepath.Join(d.Path, "subpaths", container, strconv.Itoa(attempt))
}

// Forget removes what belongs to an attempt of a container, which must not exist any more: the log and its rotated
// parts, the message, and the sub-paths.
func (d *Dir) Forget(container string, attempt int) error {
	logs, err := filepath.Glob(filepath.Join(d.Logs(), container, strconv.Itoa(attempt)+".log*"))
	if err != nil {
		return err
	}
	for _, path := range append(logs, d.messagePaths(container, attempt)...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return remove(d.subPaths(container, attempt))
}

// ForgetBefore is Forget for all attempts of a container before one.
func (d *Dir) ForgetBefore(container string, attempt int) error {
	for _, of := range append(d.messagePaths(container, 0), d.subPaths(container, 0)) {
		dir := filepath.Dir(of)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if n, err := strconv.Atoi(entry.Name()); err != nil || n >= attempt {
				continue
			} else if err := d.Forget(container, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// pinSubPath resolves a path inside a volume and binds what is found to a place that no container can change. Another
// container of the pod may write to the volume: between a check of the path and its mount it could put a symbolic link
// to the host there.
func (d *Dir) pinSubPath(target, volume, sub string) (string, error) {
	handle, err := openSubPath(volume, sub)
	if err != nil {
		return "", err
	}
	defer handle.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &stat); err != nil {
		return "", err
	}
	source := fmt.Sprintf("/proc/self/fd/%d", handle.Fd())
	if err := bind(source, target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return "", fmt.Errorf("bind it: %w", err)
	}
	return target, nil
}

// openSubPath opens a path inside a volume, of which no link leads out. Directories that are missing are made with the
// mode of the volume, as by a kubelet: with an fsGroup this is the bit by which the volume's group is theirs too.
func openSubPath(volume, sub string) (*os.File, error) {
	var root unix.Stat_t
	if err := unix.Stat(volume, &root); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: volume, Err: err}
	}
	if root.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%s is not a directory", volume)
	}
	handle, err := pathrs.OpenInRoot(volume, sub)
	if !errors.Is(err, fs.ErrNotExist) {
		return handle, err
	}
	in, err := pathrs.OpenInRoot(volume, ".")
	if err != nil {
		return nil, err
	}
	for at := ""; ; {
		name, rest, more := strings.Cut(sub, "/")
		sub, at = rest, filepath.Join(at, name)
		next, err := pathrs.OpenInRoot(volume, at)
		if errors.Is(err, fs.ErrNotExist) {
			next, err = makeDirectory(in, name, root.Mode&0o7777)
		}
		in.Close()
		if err != nil || !more {
			return next, err
		}
		in = next
	}
}

// makeDirectory makes a directory in another one, with a mode that no umask changes, and opens it. One that is there
// by now is opened as it is.
func makeDirectory(in *os.File, name string, mode uint32) (*os.File, error) {
	made := unix.Mkdirat(int(in.Fd()), name, mode)
	if made != nil && !errors.Is(made, unix.EEXIST) { // another pod may have made it meanwhile
		return nil, &fs.PathError{Op: "mkdirat", Path: filepath.Join(in.Name(), name), Err: made}
	}
	fd, err := unix.Openat(int(in.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "openat", Path: filepath.Join(in.Name(), name), Err: err}
	}
	dir := os.NewFile(uintptr(fd), filepath.Join(in.Name(), name))
	if made != nil {
		return dir, nil // its mode is the business of whoever has made it
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		dir.Close()
		return nil, &fs.PathError{Op: "chmod", Path: dir.Name(), Err: err}
	}
	return dir, nil
}

// bind mounts a directory or a file at a place that is made for it. An earlier try with the same attempt of a container
// may have left its mount there, which is removed first: a file that was opened for writing there would be the user's.
func bind(from, to string, directory bool) error {
	err := unbind(to)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	switch {
	case err != nil:
	case directory:
		err = os.Mkdir(to, 0o755)
	default:
		var file *os.File
		if file, err = os.OpenFile(to, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			err = file.Close()
		}
	}
	if err != nil {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

// unbind removes what bind has made at a place. A container that runs has its own copy of the mount.
func unbind(at string) error {
	for {
		err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing is mounted there
		}
		if err != nil {
			return &fs.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Hosts is the mount of the pod's hosts file that WriteHosts has written; nil: it has not.
func (d *Dir) Hosts() (*cri.Mount, error) {
	content, err := os.ReadFile(d.hostsContent())
	if errors.Is(err, fs.ErrNotExist) {
		// An earlier version had the file that containers write to in the pod's directory.
		old := filepath.Join(d.Path, "etc-hosts")
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return hostsMount(old), nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(d.hostsFile()); errors.Is(err, fs.ErrNotExist) { // since a reboot
		return d.WriteHosts(content)
	} else if err != nil {
		return nil, err
	}
	return hostsMount(d.hostsFile()), nil
}

// WriteHosts writes the pod's hosts file and returns the mount of it. A container may write to it, as on a kubelet.
// What it is to have at first is kept on the disk.
func (d *Dir) WriteHosts(content []byte) (*cri.Mount, error) {
	if _, err := d.makeOwnFiles(hosts); err != nil {
		return nil, err
	}
	if err := os.WriteFile(d.hostsFile(), content, 0o644); err != nil {
		return nil, err
	}
	return hostsMount(d.hostsFile()), disk.WriteFile(d.hostsContent(), content, 0o600)
}

// hosts is the kind of the pod's own files that its hosts file is.
const hosts = "hosts"

func (d *Dir) hostsFile() string { return filepath.Join(d.ownFiles(hosts), "etc-hosts") }

func (d *Dir) hostsContent() string { return filepath.Join(d.Path, hosts) }

func hostsMount(path string) *cri.Mount {
	return &cri.Mount{ContainerPath: "/etc/hosts", HostPath: path, SelinuxRelabel: true}
}
