package checkpoints

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// RestoreDir is where a checkpoint is unpacked to until the container that is made from it starts.
func (k *Checkpointer) RestoreDir(id string) string {
	return filepath.Join(k.Containers.Path(id), "restore")
}

// Restoring is a container that is being created from a checkpoint.
type Restoring struct {
	record.Restored
	layer string // of an image: the directory that has it
	info  *checkpoint.Info

	// directory has it, in the checkpoint of a pod, and member is what that says of the container.
	directory string
	member    *checkpoint.PodContainer
}

// Find finds out whether the image that a container names is a checkpoint: an archive's path, or an image that was
// made from one. It returns the image of the container's root file system, and the checkpoint, nil if there is none.
func (k *Checkpointer) Find(ctx context.Context, cfg *model.ContainerConfig,
	holder string) (*model.Image, *Restoring, error) {
	const field = model.FieldContainerImage
	name := cfg.Image.Image
	re := &Restoring{Restored: record.Restored{Source: name}}
	var err error
	if filepath.IsAbs(name) {
		re.info, err = checkpoint.ReadArchive(ctx, k.Jail, filepath.Clean(name))
	} else {
		var img *model.Image
		if img, err = k.Images.Get(ctx, name); err != nil {
			return nil, nil, err
		}
		if !k.isCheckpoint(ctx, img, cfg.Image.UserSpecifiedImage) {
			return img, nil, nil
		}
		if !k.Settings().RestoreImages {
			return nil, nil, field.Wrong(
				fmt.Errorf("%s is a checkpoint, and those in images are not restored on this node, since CRIU "+
					"does as root what they say (checkpoint.restore_images): %w", name, errdefs.ErrFailedPrecondition))
		}
		re.CheckpointImage = img.ID
		re.layer, re.info, err = k.checkpointLayer(img, holder)
	}
	if err != nil {
		return nil, nil, field.Wrong(err)
	}
	re.Container = re.info.Config.ID
	img, err := k.imageOf(ctx, re)
	if errdefs.IsNotFound(err) {
		err = field.Wrong(err)
	}
	return img, re, err
}

// isCheckpoint tells whether an image is a checkpoint. A kubelet asks for an image by its ID, beside which it says the
// name that the pod has. The image may be a checkpoint by one of its names and not by another.
func (k *Checkpointer) isCheckpoint(ctx context.Context, img *model.Image, name string) bool {
	if name != "" {
		if named, err := k.Images.Get(ctx, name); err == nil && named.ID == img.ID {
			return named.Checkpoint != ""
		}
	}
	return img.Checkpoint != ""
}

// imageOf is the image of the container that was written down.
func (k *Checkpointer) imageOf(ctx context.Context, re *Restoring) (*model.Image, error) {
	var tried []string
	for _, name := range []string{re.info.Config.RootfsImageRef, re.info.Config.RootfsImageName,
		re.info.Config.RootfsImage} {
		if name == "" || slices.Contains(tried, name) {
			continue
		}
		img, err := k.Images.Get(ctx, name)
		if err == nil {
			re.Image = img.ID
			if len(img.RepoTags) > 0 {
				re.Image = img.RepoTags[0]
			}
			return img, nil
		}
		if !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
			return nil, err
		}
		tried = append(tried, name)
	}
	return nil, fmt.Errorf("the checkpoint %s is of a container of the image %s, which has to be pulled first: %w",
		re.Source, strings.Join(tried, " or "), errdefs.ErrNotFound)
}

// checkpointLayer finds the layer of an image that is a checkpoint, and adds a reference to it.
func (k *Checkpointer) checkpointLayer(img *model.Image, holder string) (string, *checkpoint.Info, error) {
	layers, err := k.Images.AddReference(img.ID, holder)
	if err != nil {
		return "", nil, err
	}
	for _, dir := range layers.Dirs {
		if st, err := os.Lstat(filepath.Join(dir, checkpoint.ConfigFile)); err == nil && st.Mode().IsRegular() {
			info, err := checkpoint.ReadDir(dir)
			return dir, info, err
		}
	}
	return "", nil, fmt.Errorf("the image %s says that it is a checkpoint, and has no layer with a %s: %w",
		img.ID, checkpoint.ConfigFile, errdefs.ErrInvalidArgument)
}

// Unpack puts a checkpoint into a container's directory: CRIU's images, and what the writable layer has, before the
// root file system is mounted. The writable layer is there, and empty.
func (k *Checkpointer) Unpack(ctx context.Context, id, hostname string, re *Restoring) error {
	var err error
	switch {
	case re.directory != "":
		err = checkpoint.Copy(ctx, re.directory, re.Dir, k.Settings().MaxBytes)
	case re.CheckpointImage == "":
		err = checkpoint.Unpack(ctx, k.Jail, filepath.Clean(re.Source), re.Dir, k.Settings().MaxBytes)
	default:
		err = checkpoint.Link(re.layer, re.Dir)
	}
	if err != nil {
		return err
	}
	if err := checkpoint.SetHostname(re.Dir, hostname); err != nil {
		return err
	}
	upper := rootfs.Upper(k.Containers.Path(id))
	diff, err := openRegular(filepath.Join(re.Dir, checkpoint.DiffFile))
	switch {
	case errors.Is(err, fs.ErrNotExist): // a container that has written nothing
	case err != nil:
		return err
	default:
		defer diff.Close()
		if err := k.Images.UnpackTar(ctx, upper, diff); err != nil {
			return fmt.Errorf("%s: %w", checkpoint.DiffFile, err)
		}
	}
	return deleteFiles(upper, re.Dir)
}

// deleteFiles deletes from a root file system what the checkpoint says, for archives of runtimes that know no
// whiteouts.
func deleteFiles(upper, dir string) error {
	deleted, err := checkpoint.ReadDeleted(dir)
	if err != nil || len(deleted) == 0 {
		return err
	}
	root, err := os.OpenRoot(upper)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range deleted {
		rel := filepath.Clean("/" + name)[1:]
		if rel == "" {
			continue
		}
		if _, err := root.Lstat(rel); err == nil {
			continue // a whiteout, or what came after the deletion
		}
		parent, err := openParent(root, rel)
		if errors.Is(err, fs.ErrNotExist) {
			if err = root.MkdirAll(filepath.Dir(rel), 0o755); err == nil {
				parent, err = openParent(root, rel)
			}
		}
		if errors.Is(err, unix.ENOTDIR) {
			continue // something that is no directory has come in the place of all that was there
		}
		if err == nil {
			err = unix.Mknodat(int(parent.Fd()), filepath.Base(rel), unix.S_IFCHR, 0)
			parent.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %q: %w", checkpoint.DeletedFile, name, err)
		}
	}
	return nil
}

// openParent opens the directory that a name is in. What the writable layer has there may be a pipe, whose opening
// waits for a writer, or a device, whose opening does something: neither is opened.
func openParent(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(filepath.Dir(name), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// AsWritten makes the configuration of a container fit its checkpoint where it says nothing: the command is that of the
// process that goes on. One that comes with the checkpoint of a pod says all.
func (re *Restoring) AsWritten(cfg *model.ContainerConfig) *model.ContainerConfig {
	if re.member != nil {
		return cfg
	}
	out := *cfg
	out.Command, out.Args = re.info.Spec.Process.Args, nil
	return &out
}

// Fit makes the specification that of the processes as they were written down. What a request asks for and they do not
// have cannot be given to them, and they must not bring more rights than it gives: both are refused.
func (re *Restoring) Fit(cfg *model.ContainerConfig, out *ocispec.Output) error {
	old, spec := re.info.Spec, out.Spec
	if re.member != nil {
		if err := re.same(cfg, spec); err != nil {
			return err
		}
	}
	for _, id := range append([]uint32{old.Process.User.UID, old.Process.User.GID}, old.Process.User.AdditionalGids...) {
		if id > ocispec.MaxID {
			return fmt.Errorf("the checkpoint %s has the user or group ID %d, which is not a number from 0 to %d: %w",
				re.Source, id,
				ocispec.MaxID, errdefs.ErrInvalidArgument)
		}
	}
	if old.Process.Terminal != spec.Process.Terminal {
		return re.differ("terminal", spec.Process.Terminal, old.Process.Terminal)
	}
	if stdin := strings.HasPrefix(re.info.Streams[0], "pipe:"); !spec.Process.Terminal && stdin != cfg.Stdin {
		return re.differ("stdin", cfg.Stdin, stdin)
	}
	security := cfg.Security
	if (security.RunAsUser != nil || security.RunAsUsername != "") && spec.Process.User.UID != old.Process.User.UID {
		return re.differ("user", spec.Process.User.UID, old.Process.User.UID)
	}
	if security.RunAsGroup != nil && spec.Process.User.GID != old.Process.User.GID {
		return re.differ("group", spec.Process.User.GID, old.Process.User.GID)
	}
	for what, pair := range map[string][2]any{
		"mounts":              {mountPoints(spec), mountPoints(old)},
		"devices":             {devicePaths(spec), devicePaths(old)},
		"namespaces":          {namespaceKinds(spec), namespaceKinds(old)},
		"a read-only root":    {spec.Root.Readonly, old.Root.Readonly},
		"a seccomp filter":    {spec.Linux.Seccomp != nil, old.Linux.Seccomp != nil},
		"no_new_privs":        {spec.Process.NoNewPrivileges, old.Process.NoNewPrivileges},
		"the masked paths":    {sorted(spec.Linux.MaskedPaths), sorted(old.Linux.MaskedPaths)},
		"the read-only paths": {sorted(spec.Linux.ReadonlyPaths), sorted(old.Linux.ReadonlyPaths)},
	} {
		if is, was := fmt.Sprint(pair[0]), fmt.Sprint(pair[1]); is != was {
			return re.differ(what, is, was)
		}
	}
	if err := re.sameOptions(cfg, spec); err != nil {
		return err
	}
	if was, is := old.Linux.Seccomp, spec.Linux.Seccomp; is != nil && permits(was.DefaultAction) &&
		!permits(is.DefaultAction) {
		return re.differ("the default action of the seccomp filter", is.DefaultAction, was.DefaultAction)
	}
	for _, p := range []*specs.LinuxSeccomp{spec.Linux.Seccomp, old.Linux.Seccomp} {
		if p != nil && p.ListenerPath != "" {
			return fmt.Errorf("the checkpoint %s, or the request, has a seccomp profile with an agent (listenerPath %s): CRIU "+
				"cannot give a restored filter to an agent: %w", re.Source, p.ListenerPath, errdefs.ErrFailedPrecondition)
		}
	}
	if more := moreCapabilities(spec, old); len(more) > 0 {
		return re.differ("capabilities", "without "+strings.Join(more, ", "), "with them")
	}
	spec.Process.Args, spec.Process.Env, spec.Process.Cwd, spec.Process.User =
		old.Process.Args, old.Process.Env, old.Process.Cwd, old.Process.User
	out.User = model.User{UID: int64(old.Process.User.UID), GID: int64(old.Process.User.GID)}
	for _, gid := range old.Process.User.AdditionalGids {
		out.User.Groups = append(out.User.Groups, int64(gid))
	}
	return nil
}

func (re *Restoring) differ(what string, is, was any) error {
	return fmt.Errorf("the checkpoint %s has %s %v, and the request %v: a restored process cannot change it: %w",
		re.Source, what, was, is, errdefs.ErrFailedPrecondition)
}

func sorted[T cmp.Ordered](list []T) []T { return slices.Compact(slices.Sorted(slices.Values(list))) }

func mountPoints(spec *specs.Spec) []string {
	points := map[string]bool{}
	for _, m := range spec.Mounts {
		points[filepath.Clean(m.Destination)] = true
	}
	return slices.Sorted(maps.Keys(points))
}

// sameOptions refuses mounts with other restrictions than those that were written down: CRIU mounts what the request
// names, but with the flags that the mounts of the checkpoint had. Of what the runtime mounts itself, the other flags
// than ro differ between runtimes.
func (re *Restoring) sameOptions(cfg *model.ContainerConfig, spec *specs.Spec) error {
	volumes := map[string]bool{}
	for _, m := range cfg.Mounts {
		volumes[filepath.Clean(m.ContainerPath)] = true
	}
	was, is := restrictions(re.info.Spec), restrictions(spec)
	for _, at := range slices.Sorted(maps.Keys(is)) {
		for _, option := range []string{"ro", "rro", "nosuid", "nodev", "noexec"} {
			if is[at][option] != was[at][option] && (option == "ro" || volumes[at]) {
				return re.differ("the option "+option+" of the mount at "+at, is[at][option], was[at][option])
			}
		}
	}
	return nil
}

// restrictions are the options by which each mount gives less. The last one of opposites holds.
func restrictions(spec *specs.Spec) map[string]map[string]bool {
	found := map[string]map[string]bool{}
	for _, m := range spec.Mounts {
		has := map[string]bool{}
		for _, option := range m.Options {
			switch option {
			case "ro":
				has["ro"] = true
			case "rro":
				has["ro"], has["rro"] = true, true
			case "rw", "rrw":
				has["ro"], has["rro"] = false, false
			case "nosuid", "nodev", "noexec":
				has[option] = true
			case "rnosuid", "rnodev", "rnoexec":
				has[option[1:]] = true
			case "suid", "dev", "exec":
				has["no"+option] = false
			case "rsuid", "rdev", "rexec":
				has["no"+option[1:]] = false
			}
		}
		found[filepath.Clean(m.Destination)] = has
	}
	return found
}

// permits tells whether a seccomp filter with this default action forbids only what it names.
func permits(action specs.LinuxSeccompAction) bool {
	return action == specs.ActAllow || action == specs.ActLog
}

func devicePaths(spec *specs.Spec) []string {
	var paths []string
	for _, d := range spec.Linux.Devices {
		paths = append(paths, d.Path)
	}
	return sorted(paths)
}

// namespaceKinds are the namespaces that a container does not share with the node, and whether they are the pod's.
func namespaceKinds(spec *specs.Spec) []string {
	var kinds []string
	for _, n := range spec.Linux.Namespaces {
		kind := string(n.Type)
		if n.Path != "" {
			kind += " of the pod"
		}
		kinds = append(kinds, kind)
	}
	return sorted(kinds)
}

// moreCapabilities are those that the processes have and the request does not give.
func moreCapabilities(spec, old *specs.Spec) []string {
	var has, may []string
	if c := old.Process.Capabilities; c != nil {
		has = slices.Concat(c.Bounding, c.Permitted, c.Effective, c.Inheritable, c.Ambient)
	}
	if c := spec.Process.Capabilities; c != nil {
		may = c.Bounding
	}
	return slices.DeleteFunc(sorted(has), func(c string) bool { return slices.Contains(may, c) })
}

// keptLog is how many bytes of a checkpoint's log a restored container's log begins with, where nothing else bounds a
// file of it: kubelets rotate at 10 MiB (containerLogMaxSize), and more comes until they look.
const keptLog = 64 << 20

// ContinueLog lets the log of a restored container begin with that of the one that was written down: with the last
// lines of it that a file of the log may have. What the checkpoint has may be of any size, and is on another file
// system than the logs.
func ContinueLog(r *record.Container) error {
	if r.LogPath == "" {
		return nil
	}
	if st, err := os.Stat(r.LogPath); err == nil && st.Size() > 0 {
		return nil
	}
	in, err := openRegular(filepath.Join(r.Restored.Dir, checkpoint.LogFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	most := int64(keptLog)
	if r.LogLimits.MaxSize > 0 {
		most = r.LogLimits.MaxSize
	}
	tail, err := lastLines(in, most)
	if err != nil {
		return err
	}
	return writeFile(r.LogPath, 0o640, func(out *os.File) error {
		_, err := io.Copy(out, tail)
		return err
	})
}

// lastLines is the end of a file from the beginning of a line on, with at most so many bytes.
func lastLines(f *os.File, most int64) (io.Reader, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() <= most {
		return io.LimitReader(f, most), nil
	}
	if _, err := f.Seek(st.Size()-most-1, io.SeekStart); err != nil {
		return nil, err
	}
	in := bufio.NewReader(io.LimitReader(f, most+1))
	for {
		_, err := in.ReadSlice('\n')
		switch {
		case err == nil, err == io.EOF: // no line ends in it: nothing is left
			return in, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Drop ends the need for a checkpoint whose container runs, or will not.
func (k *Checkpointer) Drop(id string) {
	if err := os.RemoveAll(k.RestoreDir(id)); err != nil {
		k.Log.Error("remove a checkpoint that is no longer needed", "container_id", id, "error", err)
	}
}
