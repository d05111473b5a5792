package poddir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/manifest"
)

// Content is what a volume of a manifest's own content holds: a configMap, secret, downwardAPI or projected volume.
type Content struct {
	Files    []manifest.VolumeFile
	InMemory bool // on a tmpfs, as a kubelet keeps secrets
}

// dataLink is the symbolic link that names the directory with the files of a volume. Programs that watch a volume for
// changes know it by this name.
const dataLink = "..data"

// makeFiles makes a volume with the layout that a kubelet makes: the files are in a directory whose name is a time,
// ..data is a symbolic link to it, and each entry of the volume is one that leads through ..data. group, where there is
// one, owns the files and may read them.
func makeFiles(path string, content *Content, group *int64) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if content.InMemory {
		if err := mountMemory(path, 0); err != nil {
			return err
		}
	}
	if err := os.Chmod(path, 0o777); err != nil { // the mode that a kubelet gives a volume
		return err
	}
	stamp := time.Now().UTC().Format("..2006_01_02_15_04_05.000000000")
	for _, file := range content.Files {
		target := filepath.Join(path, stamp, file.Path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, file.Data, 0o600); err != nil {
			return err
		}
		if err := os.Chmod(target, fs.FileMode(file.Mode)); err != nil { // whatever the umask is
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(path, stamp), 0o755); err != nil { // without files, too
		return err
	}
	if err := os.Symlink(stamp, filepath.Join(path, dataLink)); err != nil {
		return err
	}
	for _, file := range content.Files {
		first, _, _ := strings.Cut(file.Path, "/")
		err := os.Symlink(filepath.Join(dataLink, first), filepath.Join(path, first))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if group == nil {
		return nil
	}
	volume, err := openVolume(path)
	if err != nil {
		return err
	}
	defer volume.Close()
	return Group{ID: *group}.give(context.Background(), volume, readable)
}

// mountMemory mounts a tmpfs that the kernel does not write to swap space, where it knows how (Linux 6.3). size is in
// bytes; 0: the kernel's own, half of the memory.
func mountMemory(path string, size int64) error {
	options := "mode=0777"
	if size > 0 {
		options += ",size=" + strconv.FormatInt(size, 10)
	}
	if err := mountTmpfs(path, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a tmpfs: %w (volumes in memory need root)", err)
	}
	return nil
}

func mountTmpfs(path string, flags uintptr, options string) error {
	err := unix.Mount("tmpfs", path, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", flags, options)
	}
	return err
}

// The pod's own files are those that containers may write to although they are in no volume: messages and the hosts
// file. They would fill the node's disk, since no limit of a container counts them. So each kind is on a tmpfs of this
// size in bytes, on which nothing can be executed.
const ownFilesSize = 1 << 20

// ownFiles is the directory of a kind of the pod's own files.
func (d *Dir) ownFiles(kind string) string { return filepath.Join(d.Path, "files", kind) }

// mounting lets one goroutine at a time see whether a tmpfs is mounted and mount it: containers of a pod start at once.
var mounting sync.Mutex

// makeOwnFiles makes the directory of a kind of the pod's own files, and mounts the tmpfs, which a reboot has removed.
// Where this process may mount nothing, they are on the disk.
func (d *Dir) makeOwnFiles(kind string) (dir string, err error) {
	mounting.Lock()
	defer mounting.Unlock()
	dir = d.ownFiles(kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if mounted, err := mountinfo.Mounted(dir); err != nil || mounted {
		return dir, err
	}
	err = mountTmpfs(dir, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=0755,size=%d", ownFilesSize))
	if err != nil && !errors.Is(err, unix.EPERM) {
		return "", fmt.Errorf("mount a tmpfs for files of the pod: %w", err)
	}
	return dir, nil
}

// MakeMessage makes the file to which a container may write why it has ended, and returns its path.
func (d *Dir) MakeMessage(container string, attempt int) (string, error) {
	dir, err := d.makeOwnFiles(messages)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, container, strconv.Itoa(attempt))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666) // the container's user may be any
}
