package checkpoint

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// Names in an archive, and in the directory that one is unpacked to.
const (
	ImagesDir    = metadata.CheckpointDirectory // CRIU's images
	ConfigFile   = metadata.ConfigDumpFile
	SpecFile     = metadata.SpecDumpFile
	DiffFile     = metadata.RootFsDiffTar    // the writable layer
	DeletedFile  = metadata.DeletedFilesFile // what it deletes of the image, as JSON, for runtimes that know no whiteouts
	LogFile      = "container.log"
	streamsFile  = "descriptors.json" // libcontainer's list of the standard streams, among the images
	metadataSize = 16 << 20           // the most bytes of a file of metadata
	utsSize      = 64 << 10           // and of CRIU's image of a UTS namespace
)

// Config is who the container was.
type Config = metadata.ContainerConfig

// Info is what an archive says of its container.
type Info struct {
	Config Config
	Spec   *specs.Spec
	// Streams are what its first process has as standard streams: pipe:[…], or a path.
	Streams []string
}

// WriteMetadata writes the files that say who the container was.
func WriteMetadata(dir string, config *Config, spec *specs.Spec, deleted []string) error {
	for name, v := range map[string]any{ConfigFile: config, SpecFile: spec, DeletedFile: deleted} {
		if _, err := metadata.WriteJSONFile(v, dir, name); err != nil {
			return err
		}
	}
	return nil
}

// Write makes an archive of a directory, the files of metadata first, so that they are found without reading all of it. What
// is neither a regular file nor a directory is left out.
func Write(ctx context.Context, w io.Writer, dir string) error {
	d, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer d.close()
	var files []string
	err = d.tree.Walk(ctx, dirtree.Walk[struct{}]{
		Visit: func(in *subdir, _ int, name string, st *unix.Stat_t) (*subdir, error) {
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				files = append(files, in.PathOf(name))
				return in.Below(name), nil
			case unix.S_IFREG:
				files = append(files, in.PathOf(name))
			}
			return nil, nil
		},
	})
	if err != nil {
		return err
	}
	first := []string{ConfigFile, SpecFile, ImagesDir, path.Join(ImagesDir, streamsFile)}
	rank := func(name string) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
	tw := tar.NewWriter(w)
	for _, name := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.writeFile(tw, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tw.Close()
}

func (d *directory) writeFile(tw *tar.Writer, name string) error {
	f, err := d.open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if info.IsDir() {
		h.Name += "/"
		return tw.WriteHeader(h)
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, h.Size)
	return err
}

// open opens an archive, which may be compressed. It must be a file that only root can have written: what is restored from
// it is as good as a program that root runs.
func open(name string) (io.Reader, func(), error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("checkpoint archive %s: %w", name, errdefs.ErrNotFound)
		}
		return nil, nil, fmt.Errorf("checkpoint archive: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, nil, err
	}
	problem := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		problem = "is no regular file"
	case st.Uid != 0 || st.Mode&0o022 != 0:
		problem = "can be written to by others than root"
	}
	if problem != "" {
		f.Close()
		return nil, nil, fmt.Errorf("checkpoint archive %s %s: %w", name, problem, errdefs.ErrInvalidArgument)
	}
	in := bufio.NewReaderSize(f, 1<<16)
	magic, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			f.Close()
			return nil, nil, broken(name, err)
		}
		return z, func() { f.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			f.Close()
			return nil, nil, broken(name, err)
		}
		return z, func() { z.Close(); f.Close() }, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil // a file, so that the reader of tars can skip what nobody wants
}

func broken(name string, err error) error {
	return fmt.Errorf("checkpoint archive %s: %w: %w", name, err, errdefs.ErrInvalidArgument)
}

// each calls fn with the regular files of an archive that are of its layout, until fn says that it is done.
func each(ctx context.Context, name string, fn func(file string, size int64, content io.Reader) (done bool, err error)) error {
	in, closeArchive, err := open(name)
	if err != nil {
		return err
	}
	defer closeArchive()
	tr := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return broken(name, err)
		}
		file := path.Clean(strings.TrimPrefix(h.Name, "./"))
		dir, base := path.Split(file)
		if h.Typeflag == tar.TypeDir || base == "." || base == ".." || dir != "" && dir != ImagesDir+"/" {
			continue // other runtimes add volumes and the like
		}
		if h.Typeflag != tar.TypeReg {
			return broken(name, fmt.Errorf("%q is no regular file", h.Name))
		}
		// The size of a sparse file is what its header says, whatever the archive has of it.
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return broken(name, fmt.Errorf("%q is a sparse file", h.Name))
			}
		}
		done, err := fn(file, h.Size, &content{ctx, tr})
		if err != nil {
			return fmt.Errorf("checkpoint archive %s: %s: %w", name, file, err)
		}
		if done {
			return nil
		}
	}
}

// ReadArchive reads what an archive says of its container.
func ReadArchive(ctx context.Context, name string) (*Info, error) {
	found := map[string][]byte{}
	err := each(ctx, name, func(file string, size int64, content io.Reader) (bool, error) {
		switch file {
		case ConfigFile, SpecFile, path.Join(ImagesDir, streamsFile):
		default:
			return false, nil
		}
		if size > metadataSize {
			return false, fmt.Errorf("%d bytes: %w", size, errdefs.ErrInvalidArgument)
		}
		b, err := io.ReadAll(content)
		found[file] = b
		return len(found) == 3, err
	})
	if err != nil {
		return nil, err
	}
	return parse("checkpoint archive "+name, func(file string) ([]byte, error) {
		if b, ok := found[file]; ok {
			return b, nil
		}
		return nil, fs.ErrNotExist
	})
}

func parse(what string, read func(string) ([]byte, error)) (*Info, error) {
	info := &Info{Spec: &specs.Spec{}}
	for file, v := range map[string]any{ConfigFile: &info.Config, SpecFile: info.Spec, path.Join(ImagesDir, streamsFile): &info.Streams} {
		b, err := read(file)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w: %w", what, file, err, errdefs.ErrInvalidArgument)
		}
	}
	if info.Spec.Process == nil || info.Spec.Linux == nil || info.Spec.Root == nil || len(info.Streams) < 3 {
		return nil, fmt.Errorf("%s: it does not say what its container was: %w", what, errdefs.ErrInvalidArgument)
	}
	return info, nil
}

// Unpack unpacks an archive into a directory, which is made.
func Unpack(ctx context.Context, name, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, ImagesDir), 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return each(ctx, name, func(file string, _ int64, content io.Reader) (bool, error) {
		f, err := root.OpenFile(filepath.FromSlash(file), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return false, err
		}
		_, err = io.Copy(f, content)
		return false, errors.Join(err, f.Close())
	})
}

// content is a file of an archive. Reading ends with the context, however long the file is, and what cannot be read is the
// archive's fault.
type content struct {
	ctx context.Context
	in  io.Reader
}

func (c *content) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.in.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return n, err
}
