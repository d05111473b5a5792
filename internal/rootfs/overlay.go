package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/model"
)

// Options says what a container's root file system is made of.
type Options struct {
	// Dir is the container's directory, absolute. Mount makes it, for root alone, and in it rootfs (the mount point),
	// upper and work.
	Dir string
	// At is another mount point, absolute: for a process that may not enter Dir. Mount makes it. Empty: rootfs in Dir.
	At string
	// Lowers are the image's layers, the top one first, absolute. None is an empty image.
	Lowers []string
	// Readonly mounts without a writable layer of the container's own: nothing can write, nor make a mount point that
	// the image lacks.
	Readonly bool
	// Durable makes what a container syncs reach the disk, and syncs the layer's whole file system as the overlay is
	// unmounted, which can take seconds. Without it a container's syncs of its own layer do nothing (Linux 5.10): the
	// layer ends with the container, and its volumes are not part of it.
	Durable bool
	// Label is the SELinux label of every file; empty: none.
	Label string
	// UIDs and GIDs map the layers' owners into a user namespace of the pod (Linux 5.19): the layers are mounted with
	// these mappings below the overlay. Both or none.
	UIDs, GIDs []model.IDMapping
	// Remote: layers are of a file system that may not answer, FUSE for example. The process that mounts may have to wait
	// for it, and cannot be killed meanwhile: package hostpath has a child do it.
	Remote bool
	// UserNS is where a user namespace with just these mappings is pinned; empty: one is made for the mount.
	UserNS string
}

const (
	mountDir = "rootfs"
	upperDir = "upper"
	workDir  = "work"
	emptyDir = "empty" // stands in for a layer; see fill
)

// Path is where the root file system of a container directory is mounted, unless Options.At says otherwise.
func Path(dir string) string { return filepath.Join(dir, mountDir) }

// Upper is the writable layer of a container directory.
func Upper(dir string) string { return filepath.Join(dir, upperDir) }

// WritableDirs are the directories that hold what a container writes: its layer, and where overlayfs prepares parts
// of it.
func WritableDirs(dir string) []string { return []string{Upper(dir), filepath.Join(dir, workDir)} }

// oneByOne tells whether overlayfs takes lower layers one by one (Linux 6.5). An older kernel with the new mount API
// would only say that something is invalid, so the version decides.
var oneByOne = sync.OnceValue(func() bool { return kernelAtLeast(6, 5) })

// volatileKnown tells whether overlayfs knows the option volatile.
var volatileKnown = sync.OnceValue(func() bool { return kernelAtLeast(5, 10) })

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var isMajor, isMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &isMajor, &isMinor); err != nil {
		return false
	}
	return isMajor > major || isMajor == major && isMinor >= minor
}

// Mount mounts a root file system and returns its path. A mount that is there already (from before a crash)
// is replaced. On an error nothing stays mounted; the directories stay, for Remove.
func Mount(ctx context.Context, o Options) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := o.check(); err != nil {
		return "", err
	}
	if err := o.makeDirs(); err != nil {
		return "", fmt.Errorf("root file system: %w", disk.Exhausted(err))
	}
	target := o.At
	if target == "" {
		target = Path(o.Dir)
	}
	if err := Unmount(o.Dir, target); err != nil {
		return "", err
	}
	// A volatile overlay marks its work directory, and the mark keeps it from being mounted again after a crash. What is
	// mounted again here belongs to a container that has not started yet, so nothing can have been lost.
	if err := os.RemoveAll(filepath.Join(o.Dir, workDir, "work", "incompat")); err != nil {
		return "", fmt.Errorf("root file system: %w", err)
	}
	lowers := append(slices.Clone(o.Lowers), o.fill()...)
	if len(o.UIDs) > 0 {
		mapped, err := mapLayers(o, lowers)
		defer mapped.release()
		if err != nil {
			if o.Remote && errors.Is(err, unix.EINVAL) {
				return "", fmt.Errorf("root file system: the kernel does not map owners into a user namespace (hostUsers: false) "+
					"on the file system of a remote layer: %w: %w", err, errdefs.ErrFailedPrecondition)
			}
			return "", fmt.Errorf("root file system: map owners: %w", err)
		}
		lowers = mapped.paths
	}
	err := errNoMountAPI
	if oneByOne() && len(o.Label) <= maxValue {
		err = o.mountByFsconfig(lowers, target)
	}
	if errors.Is(err, errNoMountAPI) {
		err = o.mountByOptions(lowers, target)
	}
	if err != nil {
		return "", fmt.Errorf("mount root file system %s of %d layers: %w", target, len(o.Lowers), disk.Exhausted(err))
	}
	return target, nil
}

func (o Options) check() error {
	if !filepath.IsAbs(o.Dir) || o.At != "" && !filepath.IsAbs(o.At) {
		return fmt.Errorf("root file system: directory %q or mount point %q is not absolute: %w", o.Dir,
			o.At, errdefs.ErrInvalidArgument)
	}
	for _, lower := range o.Lowers {
		if !filepath.IsAbs(lower) {
			return fmt.Errorf("root file system: layer %q is not absolute: %w", lower, errdefs.ErrInvalidArgument)
		}
	}
	if (len(o.UIDs) == 0) != (len(o.GIDs) == 0) {
		return fmt.Errorf("root file system: ID mappings are for users and groups both, or for none: %w",
			errdefs.ErrInvalidArgument)
	}
	return nil
}

func (o Options) makeDirs() error {
	// Nobody but root may enter: what is below are other people's setuid programs.
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	type dir struct {
		name string
		mode fs.FileMode
	}
	var dirs []dir
	if o.At == "" {
		dirs = append(dirs, dir{mountDir, 0o700})
	} else if err := os.MkdirAll(o.At, 0o711); err != nil {
		return err
	}
	if !o.Readonly {
		dirs = append(dirs, dir{workDir, 0o700})
	}
	for _, empty := range o.fill() {
		dirs = append(dirs, dir{filepath.Base(empty), 0o755})
	}
	for _, d := range dirs {
		if err := os.Mkdir(filepath.Join(o.Dir, d.name), d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if o.Readonly {
		return nil
	}
	switch err := os.Mkdir(Upper(o.Dir), 0o755); {
	case errors.Is(err, fs.ErrExist):
		return nil // the container may have changed how its root looks, before it was written down
	case err != nil:
		return err
	}
	return o.dressRoot()
}

// fill is empty directories for as many layers as the image lacks: an overlay needs one lower layer, and two where it
// has no upper one.
func (o Options) fill() []string {
	need := 1
	if o.Readonly {
		need = 2
	}
	var dirs []string
	for i := len(o.Lowers); i < need; i++ {
		dirs = append(dirs, filepath.Join(o.Dir, emptyDir+strconv.Itoa(i)))
	}
	return dirs
}

// dressRoot gives the upper directory the mode and owner of the image's root directory: an overlay shows its upper
// directory's.
func (o Options) dressRoot() error {
	mode, uid, gid := fs.FileMode(0o755), 0, 0
	if len(o.Lowers) > 0 {
		var st unix.Stat_t
		if err := unix.Stat(o.Lowers[0], &st); err != nil {
			return fmt.Errorf("layer %s: %w", o.Lowers[0], err)
		}
		mode, uid, gid = fs.FileMode(st.Mode&0o777), int(st.Uid), int(st.Gid)
		if st.Mode&unix.S_ISVTX != 0 {
			mode |= fs.ModeSticky
		}
		if st.Mode&unix.S_ISGID != 0 {
			mode |= fs.ModeSetgid
		}
	}
	upper := Upper(o.Dir)
	if err := os.Chown(upper, HostID(o.UIDs, uid), HostID(o.GIDs, gid)); err != nil {
		return err
	}
	return os.Chmod(upper, mode)
}

var errNoMountAPI = errors.New("no fsopen here")

// maxValue is the most bytes of a value that fsconfig(2) takes. mount(2) has a limit for all options together.
const maxValue = 255

// openDirs are directories that overlayfs is given by their descriptors, since their paths are too long.
type openDirs []*os.File

func (d *openDirs) close() {
	for _, f := range *d {
		f.Close()
	}
}

// short is a short path of a directory. It needs no change of directory, which the whole process would share.
func (d *openDirs) short(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	*d = append(*d, os.NewFile(uintptr(fd), path))
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// mountByFsconfig hands over each layer by itself, which needs no escaping and has no limit of a page.
func (o Options) mountByFsconfig(lowers []string, target string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM: a seccomp filter that does not know it
			return errNoMountAPI
		}
		return fmt.Errorf("overlayfs: %w", err)
	}
	defer unix.Close(fd)
	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return configError(fd, fmt.Sprintf("%s=%s", key, value), err)
		}
		return nil
	}
	var dirs openDirs
	defer dirs.close()
	setDir := func(key, path string) error {
		if len(path) <= maxValue {
			return set(key, path)
		}
		value, err := dirs.short(path)
		if err == nil {
			err = set(key, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	for _, lower := range lowers {
		if err := setDir("lowerdir+", lower); err != nil {
			return err
		}
	}
	if !o.Readonly {
		err := errors.Join(setDir("upperdir", Upper(o.Dir)), setDir("workdir", filepath.Join(o.Dir, workDir)))
		if err != nil {
			return err
		}
	}
	for _, option := range o.flags() {
		key, value, isPair := strings.Cut(option, "=")
		if isPair {
			if err := set(key, value); err != nil {
				return err
			}
		} else if err := unix.FsconfigSetFlag(fd, key); err != nil {
			return configError(fd, key, err)
		}
	}
	// So that mount(8) and the listing of mounts below show whose it is.
	if err := set("source", "berth"); err != nil {
		return err
	}
	if o.Readonly {
		if err := unix.FsconfigSetFlag(fd, "ro"); err != nil {
			return configError(fd, "ro", err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return configError(fd, "create", err)
	}
	attrs := 0
	if o.Readonly {
		attrs = unix.MOUNT_ATTR_RDONLY
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return configError(fd, "fsmount", err)
	}
	defer unix.Close(mnt)
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return makePrivate(target)
}

func makePrivate(target string) error {
	if err := unix.Mount("", target, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(fmt.Errorf("make private: %w", err), detach(target))
	}
	return nil
}

// configError adds what the kernel logged in the file system context, which names the layer that it dislikes.
func configError(fd int, what string, err error) error {
	buf := make([]byte, 1024)
	var said []string
	for len(said) < 8 {
		n, readErr := unix.Read(fd, buf)
		if readErr != nil || n == 0 {
			break
		}
		said = append(said, strings.TrimSpace(string(buf[:n])))
	}
	if len(said) == 0 {
		return fmt.Errorf("overlayfs %s: %w", what, err)
	}
	return fmt.Errorf("overlayfs %s: %w (%s)", what, err, strings.Join(said, "; "))
}

// flags are the options besides the layers. Layers come from registries, so nothing that their xattrs could say about
// other files is followed: no metacopy, no redirects. An index would only cost time: nothing here is exported over NFS.
func (o Options) flags() []string {
	flags := []string{"index=off", "metacopy=off", "redirect_dir=nofollow"}
	if !o.Durable && !o.Readonly && volatileKnown() {
		flags = append(flags, "volatile")
	}
	if o.Label != "" {
		flags = append(flags, "context="+o.Label)
	}
	return flags
}

// mountByOptions is mount(2) for kernels before 6.5, and for a label that is too long for fsconfig(2). All options must
// fit in a page, so layers are named through open descriptors.
func (o Options) mountByOptions(lowers []string, target string) error {
	var dirs openDirs
	defer dirs.close()
	names := make([]string, len(lowers))
	for i, lower := range lowers {
		var err error
		if names[i], err = dirs.short(lower); err != nil {
			return err
		}
	}
	options := []string{"lowerdir=" + strings.Join(names, ":")}
	if !o.Readonly {
		up, err := dirs.short(Upper(o.Dir))
		if err != nil {
			return err
		}
		work, err := dirs.short(filepath.Join(o.Dir, workDir))
		if err != nil {
			return err
		}
		options = append(options, "upperdir="+up, "workdir="+work)
	}
	for _, flag := range o.flags() {
		if label, ok := strings.CutPrefix(flag, "context="); ok {
			flag = `context="` + label + `"` // a level may have commas
		}
		options = append(options, flag)
	}
	data := strings.Join(options, ",")
	if len(data) >= os.Getpagesize() {
		return fmt.Errorf("%d layers are more than this kernel can mount: %w", len(lowers), errdefs.ErrFailedPrecondition)
	}
	var flags uintptr
	if o.Readonly {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount("berth", target, "overlay", flags, data); err != nil {
		return fmt.Errorf("overlayfs: %w", err)
	}
	return makePrivate(target)
}
