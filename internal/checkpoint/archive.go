package checkpoint

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint/archive"
	"berth/internal/dirtree"
	"berth/internal/jail"
	"berth/internal/rawenv"
	"berth/internal/sparse"
)

// Names in an archive, and in the directory that one is unpacked to.
const (
	ImagesDir   = archive.ImagesDir
	ConfigFile  = archive.ConfigFile
	SpecFile    = archive.SpecFile
	DiffFile    = metadata.RootFsDiffTar    // the writable layer
	DeletedFile = metadata.DeletedFilesFile // what it deletes of the image, as JSON, for runtimes that know no whiteouts
	LogFile     = "container.log"
)

// Config identifies the container.
type Config = metadata.ContainerConfig

// Info describes the container of an archive.
type Info struct {
	Config Config
	Spec   *specs.Spec
	// Streams are what its init process has as standard streams: pipe:[…], or a path.
	Streams []string
}

// WriteMetadata writes the files that say who the container was.
func WriteMetadata(dir string, config *Config, spec *specs.Spec, deleted []string) error {
	for name, v := range map[string]any{ConfigFile: config, SpecFile: rawenv.Fill(spec), DeletedFile: deleted} {
		if _, err := metadata.WriteJSONFile(v, dir, name); err != nil {
			return err
		}
	}
	return nil
}

// Write makes an archive of a directory, the files of metadata first, so that they are found without reading all of it.
// What is neither a regular file nor a directory is left out.
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
	first := []string{ConfigFile, SpecFile, ImagesDir, archive.StreamsFile}
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
		if err := d.writeFile(ctx, tw, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tw.Close()
}

func (d *directory) writeFile(ctx context.Context, tw *tar.Writer, name string) error {
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
	_, err = sparse.CopyN(ctx, tw, f, h.Size)
	return err
}

// openArchive opens an archive. It must be a file that only root can have written: what is restored from it is as good
// as a program that root runs.
func openArchive(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("checkpoint archive %s: %w", name, errdefs.ErrNotFound)
		}
		return nil, fmt.Errorf("checkpoint archive: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, err
	}
	problem := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		problem = "is no regular file"
	case othersWrite(&st):
		problem = "can be written to by others than root"
	}
	if problem != "" {
		f.Close()
		return nil, fmt.Errorf("checkpoint archive %s %s: %w", name, problem, errdefs.ErrInvalidArgument)
	}
	return f, nil
}

// ReadArchive reads what an archive says of its container, by a child.
func ReadArchive(ctx context.Context, j *jail.Jail, name string) (*Info, error) {
	var found archive.Metadata
	if err := inChild(ctx, j, name, jail.Spec{Role: archive.ReadRole, MaxAnswer: archive.Answer}, &found); err != nil {
		return nil, err
	}
	return parse("checkpoint archive "+name, func(file string) ([]byte, error) {
		if b, ok := found[file]; ok {
			return b, nil
		}
		return nil, fs.ErrNotExist
	})
}

// patience is longer than any honest child takes for an archive.
func patience(f *os.File) time.Duration {
	most := 10 * time.Minute
	if info, err := f.Stat(); err == nil {
		most += time.Duration(info.Size()>>20) * time.Second
	}
	return most
}

func inChild(ctx context.Context, j *jail.Jail, name string, spec jail.Spec, result any) error {
	f, err := openArchive(name)
	if err != nil {
		return err
	}
	defer f.Close()
	spec.Files, spec.Memory = []*os.File{f}, archive.Memory
	ctx, stop := context.WithTimeoutCause(ctx, patience(f),
		fmt.Errorf("reading the checkpoint archive %s took too long, and was given up: %w",
			name, errdefs.ErrResourceExhausted))
	defer stop()
	c, err := j.Start(ctx, spec)
	if err != nil {
		return err
	}
	if err := c.Wait(result); err != nil {
		return fmt.Errorf("checkpoint archive %s: %w", name, err)
	}
	return nil
}

func parse(what string, read func(string) ([]byte, error)) (*Info, error) {
	info := &Info{Spec: &specs.Spec{}}
	spec := &rawenv.Spec{Spec: info.Spec}
	for file, v := range map[string]any{ConfigFile: &info.Config, SpecFile: spec,
		archive.StreamsFile: &info.Streams} {
		b, err := read(file)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w: %w", what, file, err, errdefs.ErrInvalidArgument)
		}
	}
	spec.Restore()
	if info.Spec.Process == nil || info.Spec.Linux == nil || info.Spec.Root == nil || len(info.Streams) < 3 {
		return nil, fmt.Errorf("%s: it does not say what its container was: %w", what, errdefs.ErrInvalidArgument)
	}
	return info, nil
}

// Unpack unpacks an archive into a directory, which is made, by a child. The files have at most so many bytes.
func Unpack(ctx context.Context, j *jail.Jail, name, dir string, most uint64) error {
	if err := os.MkdirAll(filepath.Join(dir, ImagesDir), 0o700); err != nil {
		return err
	}
	d, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer d.close()
	err = inChild(ctx, j, name, jail.Spec{Role: archive.UnpackRole, Dirs: []jail.Dir{{File: d.root}}, FileSize: most}, nil)
	if err != nil {
		return err
	}
	return d.plain() // the child is not believed
}
