// Package archive reads archives of checkpoints, which may be hostile. It runs in confined children of berthd (package
// jail).
package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/compression"
	"berth/internal/jail/wire"
)

// Names in an archive, and in the directory that one is unpacked to.
const (
	ImagesDir   = metadata.CheckpointDirectory // CRIU's images
	ConfigFile  = metadata.ConfigDumpFile
	SpecFile    = metadata.SpecDumpFile
	StreamsFile = ImagesDir + "/descriptors.json" // libcontainer's list of the standard streams

	// MetadataSize is the most bytes of a file of metadata.
	MetadataSize = 16 << 20
)

// Roles of children. The file of each is the archive.
var (
	// ReadRole has nothing but the archive. Its answer is Metadata.
	ReadRole = &wire.Role{Name: "read the checkpoint", Filesystem: true}
	// UnpackRole has the directory that the archive is unpacked to. What it makes there is root's, as the directory is.
	UnpackRole = &wire.Role{
		Name: "unpack the checkpoint", Filesystem: true, Capabilities: []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE},
	}
)

const (
	// Memory is how much a process needs: for decompressing, and for metadata as it is and as JSON.
	Memory = compression.Memory + 12*MetadataSize
	// Answer is the length of the longest answer.
	Answer = 4*MetadataSize + 4<<10
)

// Metadata are the files that say what the container was, by their names.
type Metadata map[string][]byte

// Read reads the metadata of an archive.
func Read(file *os.File) (Metadata, error) {
	found := Metadata{}
	return found, each(file, func(name string, size int64, content io.Reader) (bool, error) {
		switch name {
		case ConfigFile, SpecFile, StreamsFile:
		default:
			return false, nil
		}
		if size > MetadataSize {
			return false, fmt.Errorf("%d bytes: %w", size, errdefs.ErrInvalidArgument)
		}
		b, err := io.ReadAll(content)
		found[name] = b
		return len(found) == 3, err
	})
}

// Unpack unpacks an archive into a directory, which has one for CRIU's images.
func Unpack(file, dir *os.File) error {
	const directory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	images, err := unix.Openat(int(dir.Fd()), ImagesDir, directory, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: ImagesDir, Err: err}
	}
	defer unix.Close(images)
	return each(file, func(name string, _ int64, content io.Reader) (bool, error) {
		at := int(dir.Fd())
		if base, ok := strings.CutPrefix(name, ImagesDir+"/"); ok {
			at, name = images, base
		}
		fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false, os.NewSyscallError("open", err)
		}
		f := os.NewFile(uintptr(fd), name)
		if err = unix.Fchown(fd, 0, 0); err == nil {
			_, err = io.Copy(f, content)
		}
		return false, errors.Join(err, f.Close())
	})
}

// each calls fn with the regular files of an archive that are of its layout, until fn says that it is done.
func each(file *os.File, fn func(name string, size int64, content io.Reader) (done bool, err error)) error {
	in := bufio.NewReaderSize(file, 1<<16)
	plain, err := compression.NewReader(in)
	if err != nil {
		return err
	}
	defer plain.Close()
	tr := tar.NewReader(plain)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		dir, base := path.Split(name)
		if h.Typeflag == tar.TypeDir || base == "." || base == ".." || dir != "" && dir != ImagesDir+"/" {
			continue // other runtimes add volumes and the like
		}
		if h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%q is no regular file: %w", h.Name, errdefs.ErrInvalidArgument)
		}
		// The size of a sparse file is what its header says, whatever the archive has of it.
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return fmt.Errorf("%q is a sparse file: %w", h.Name, errdefs.ErrInvalidArgument)
			}
		}
		done, err := fn(name, h.Size, content{tr})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if done {
			return nil
		}
	}
}

// content is a file of an archive. What cannot be read of it is the archive's fault.
type content struct{ in io.Reader }

func (c content) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return n, err
}
