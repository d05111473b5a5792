package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/sparse"
)

// PodFile is in the directory of a pod's checkpoint, and says what else is in it. It is written when all else is there.
const PodFile = "pod.json"

// podVersion is that of the format of PodFile, and of the directory.
const podVersion = 1

// Pod describes the checkpoint of a pod: a directory with one directory for each container, each in the layout of a
// container's archive.
type Pod struct {
	Version        int            `json:"version"`
	Namespace      string         `json:"namespace"`
	Name           string         `json:"name"`
	UID            string         `json:"uid"`
	CheckpointedAt time.Time      `json:"checkpointedAt"`
	Containers     []PodContainer `json:"containers"`
}

// PodContainer is a container in the checkpoint of a pod.
type PodContainer struct {
	Name      string `json:"name"` // of its metadata
	Directory string `json:"directory"`
	// What its configuration said of its process.
	Command    []string          `json:"command,omitempty"`
	Args       []string          `json:"args,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	Env        model.Environment `json:"env,omitempty"`
}

// ContainerDir is the directory of a pod's container in the pod's checkpoint, by the container's index there.
func ContainerDir(i int) string { return fmt.Sprintf("container-%d", i) }

// WritePod makes a directory, which has the containers' directories already, the checkpoint of a pod.
func WritePod(dir string, pod *Pod) error {
	pod.Version = podVersion
	b, err := json.MarshalIndent(pod, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, PodFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// ReadPod reads the description in the directory of a pod's checkpoint, which only root can have written to. If the
// directory is not there, the error is errdefs.ErrNotFound, and if it is no checkpoint, errdefs.ErrInvalidArgument.
func ReadPod(dir string) (*Pod, error) {
	what := "checkpoint of a pod at " + dir
	d, err := openTrusted(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer d.close()
	b, err := d.metadata(PodFile)
	pod := &Pod{}
	if err == nil {
		err = json.Unmarshal(b, pod)
	}
	if err == nil {
		err = pod.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w: %w", what, PodFile, err, errdefs.ErrInvalidArgument)
	}
	return pod, nil
}

// ReadContainer reads what a directory in the checkpoint of a pod says of its container.
func ReadContainer(dir string) (*Info, error) {
	what := "checkpoint of a container at " + dir
	d, err := openTrusted(dir)
	if errdefs.IsNotFound(err) { // the description names it
		err = fmt.Errorf("there is no such directory: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer d.close()
	return d.info(what)
}

// CheckOutput refuses a directory in which no checkpoint of a pod can be put: its path is not absolute, it is not there
// or not empty, or others than root can write to it. The error is errdefs.ErrInvalidArgument.
func CheckOutput(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("output path %q is not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	d, err := openTrusted(dir)
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("there is no such directory: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("output path %s: %w", dir, err)
	}
	defer d.close()
	if names, _ := d.root.Readdirnames(1); len(names) > 0 {
		return fmt.Errorf("output path %s is not empty: %w", dir, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (p *Pod) check() error {
	if p.Version != podVersion {
		return fmt.Errorf("version %d of the format is unknown, this is %d", p.Version, podVersion)
	}
	if len(p.Containers) == 0 {
		return errors.New("it has no containers")
	}
	var names []string
	for i, c := range p.Containers {
		switch {
		case c.Name == "":
			return fmt.Errorf("container %d has no name", i)
		case slices.Contains(names, c.Name):
			return fmt.Errorf("two containers are called %q", c.Name)
		case c.Directory == "" || c.Directory == "." || c.Directory == ".." || strings.ContainsAny(c.Directory, "/\x00"):
			return fmt.Errorf("container %q has the directory %q, which is no name", c.Name, c.Directory)
		}
		names = append(names, c.Name)
	}
	return nil
}

// Copy copies the checkpoint of a container, a directory in the layout of an archive, as Unpack would unpack it. The
// files have at most so many bytes together. All must be plain files that only root can have written to.
func Copy(ctx context.Context, from, to string, most uint64) error {
	source, err := openTrusted(from)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer source.close()
	if err := source.plain(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, ImagesDir), 0o700); err != nil {
		return err
	}
	target, err := openDirectory(to)
	if err != nil {
		return err
	}
	defer target.close()
	left := most
	for _, sub := range []string{"", ImagesDir} {
		dir, err := source.open(cmp.Or(sub, ".")) // which says whose it is
		if err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		dir.Close()
		at, err := target.tree.FD(target.sub(sub))
		if err != nil {
			return err
		}
		err = source.each(sub, func(_ int, name string, kind uint32) error {
			if kind == unix.S_IFDIR {
				return nil
			}
			n, err := source.copyFile(ctx, path.Join(sub, name), at, left)
			left -= n
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file to a directory, and returns its size, of at most so many bytes.
func (d *directory) copyFile(ctx context.Context, name string, to int, most uint64) (uint64, error) {
	in, err := d.open(name)
	if err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	defer in.Close()
	st, err := in.Stat()
	switch {
	case err != nil:
		return 0, err
	case !st.Mode().IsRegular():
		return 0, fmt.Errorf("checkpoint: %q is no regular file: %w", name, errdefs.ErrInvalidArgument)
	case uint64(st.Size()) > most:
		return 0, fmt.Errorf("checkpoint: its files have more bytes than a layer of an image may have "+
			"(image.max_layer_bytes): %w", errdefs.ErrResourceExhausted)
	}
	const create = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(to, path.Base(name), create, 0o600)
	if err != nil {
		return 0, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	out := os.NewFile(uintptr(fd), name)
	_, err = sparse.Copy(ctx, out, in)
	return uint64(st.Size()), errors.Join(err, out.Close())
}
