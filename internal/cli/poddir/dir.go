package poddir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/disk"
)

// Dir is the directory of one pod. One without a path is of a pod that can have none here.
type Dir struct {
	Path string
	uid  string
}

func (d *Dir) make(record Record) error {
	if d.Path == "" {
		return fmt.Errorf("the name of pod %s/%s cannot be the name of a directory", record.Namespace, record.Name)
	}
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return err
	}
	data, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := disk.WriteFile(filepath.Join(d.Path, recordFile), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Mkdir(d.Logs(), 0o750)
}

// Logs is the directory of the pod's logs.
func (d *Dir) Logs() string { return filepath.Join(d.Path, "logs") }

// MakeLog makes the place of a container's log and returns its path relative to Logs.
func (d *Dir) MakeLog(container string, attempt int) (string, error) {
	if err := os.MkdirAll(filepath.Join(d.Logs(), container), 0o750); err != nil {
		return "", err
	}
	return filepath.Join(container, strconv.Itoa(attempt)+".log"), nil
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
	if err != nil {
		return err
	}
	if record.UID != d.uid {
		return fmt.Errorf("%s belongs to pod %s, not to %s", d.Path, record.UID, d.uid)
	}
	return remove(d.Path)
}

// Volumes maps the names of a pod's volumes to their directories on the host.
type Volumes map[string]string

// MakeVolumes makes the emptyDirs of a pod and checks its hostPaths. group, where there is one, owns the emptyDirs.
func (d *Dir) MakeVolumes(volumes []corev1.Volume, group *int64) (Volumes, error) {
	paths := Volumes{}
	for _, volume := range volumes {
		var path string
		var err error
		switch {
		case volume.HostPath != nil:
			path = volume.HostPath.Path
			err = checkHostPath(volume.HostPath)
		case volume.EmptyDir != nil:
			path = filepath.Join(d.Path, "volumes", volume.Name)
			err = makeEmptyDir(path, volume.EmptyDir, group)
		default:
			err = errors.New("neither hostPath nor emptyDir")
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		paths[volume.Name] = path
	}
	return paths, nil
}

func makeEmptyDir(path string, source *corev1.EmptyDirVolumeSource, group *int64) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if source.Medium == corev1.StorageMediumMemory {
		options := "mode=0777"
		if limit := source.SizeLimit; limit != nil && limit.Sign() > 0 {
			options += ",size=" + strconv.FormatInt(limit.Value(), 10)
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("mount a tmpfs: %w (volumes in memory need root)", err)
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

// checkHostPath makes or checks what a hostPath names, by its type.
func checkHostPath(source *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	switch kind {
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
		corev1.HostPathUnset:     true,
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

// Mounts are the mounts of a container. expand replaces variables in subPathExpr.
func (d *Dir) Mounts(container string, mounts []corev1.VolumeMount, volumes Volumes,
	expand func(string) string) ([]*cri.Mount, error) {
	var all []*cri.Mount
	for i, mount := range mounts {
		source, ok := volumes[mount.Name]
		if !ok {
			return nil, fmt.Errorf("container %s: there is no volume %q", container, mount.Name)
		}
		sub := mount.SubPath
		if mount.SubPathExpr != "" {
			sub = expand(mount.SubPathExpr)
		}
		if sub != "" {
			var err error
			if source, err = d.pinSubPath(container, i, source, sub); err != nil {
				return nil, fmt.Errorf("container %s: volume %s: subPath %s: %w", container, mount.Name, sub, err)
			}
		}
		m := &cri.Mount{ContainerPath: mount.MountPath, HostPath: source, Readonly: mount.ReadOnly}
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

// pinSubPath resolves a path inside a volume and binds what is found to a place that no container can change. Another
// container of the pod may write to the volume: between a check of the path and its mount it could put a symbolic link
// to the host there.
func (d *Dir) pinSubPath(container string, index int, volume, sub string) (string, error) {
	info, err := os.Stat(volume)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", volume)
	}
	handle, err := pathrs.OpenInRoot(volume, sub)
	if errors.Is(err, fs.ErrNotExist) {
		if err = pathrs.MkdirAll(volume, sub, 0o750); err == nil {
			handle, err = pathrs.OpenInRoot(volume, sub)
		}
	}
	if err != nil {
		return "", err
	}
	defer handle.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &stat); err != nil {
		return "", err
	}
	target := filepath.Join(d.Path, "subpaths", container, strconv.Itoa(index))
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.MkdirAll(target, 0o755)
	} else {
		if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
			err = os.WriteFile(target, nil, 0o644)
		}
	}
	if err != nil {
		return "", err
	}
	source := fmt.Sprintf("/proc/self/fd/%d", handle.Fd())
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("bind it: %w", err)
	}
	return target, nil
}

// WriteHosts writes the pod's hosts file and returns the mount of it. A container may write to it, as on a kubelet.
func (d *Dir) WriteHosts(content []byte) (*cri.Mount, error) {
	path := filepath.Join(d.Path, "etc-hosts")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return nil, err
	}
	return &cri.Mount{ContainerPath: "/etc/hosts", HostPath: path}, nil
}
