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
	"time"

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
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		return fmt.Errorf("mount a tmpfs: %w (volumes in memory need root)", err)
	}
	return nil
}

// MakeMessage makes the file to which a container may write why it has ended, and returns its path.
func (d *Dir) MakeMessage(container string, attempt int) (string, error) {
	path := d.Message(container, attempt)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666) // the container's user may be any
}
