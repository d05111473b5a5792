package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/fileattr"
)

// existing is the nearest directory at or above path that exists.
func existing(path string) string {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && info.IsDir() || path == "/" {
			return path
		}
	}
}

// checkOverlay mounts an overlay where the daemon would and takes it away again.
func checkOverlay(_ context.Context, cfg Config) Finding {
	if !isRoot() {
		data, err := os.ReadFile("/proc/filesystems")
		if err == nil && strings.Contains(string(data), "\toverlay\n") {
			return good("the kernel has it (a mount was not tried)")
		}
		return poor("not tried, and not loaded", "Try: sudo modprobe overlay")
	}
	if err := tryOverlay(existing(cfg.Root)); err != nil {
		return bad(err.Error(), "Try: modprobe overlay. Where it is loaded, the file system of "+cfg.Root+
			" cannot hold upper directories (another overlay, NFS, xfs with ftype=0):\n"+
			"set root in the daemon's configuration to a directory on ext4, xfs or btrfs.")
	}
	return good("an overlay on the file system of " + existing(cfg.Root) + " works")
}

func tryOverlay(parent string) (err error) {
	dir, err := os.MkdirTemp(parent, ".berth-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
	merged := filepath.Join(dir, "merged")
	// Volatile: its unmount would else write all that the file system has in memory to the disk.
	err = unix.Mount("overlay", merged, "overlay", 0, options+",volatile")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", merged, "overlay", 0, options)
	}
	if err != nil {
		return fmt.Errorf("mount an overlay in %s: %w", parent, err)
	}
	return errors.Join(os.WriteFile(filepath.Join(merged, "file"), nil, 0o600), unix.Unmount(merged, 0))
}

// checkState looks whether pods can have user namespaces, and whether the root of such a namespace reaches the root
// file systems of these pods, which are mounted below the state directory.
func checkState(_ context.Context, cfg Config) Finding {
	if d := cfg.Daemon; d != nil && d.NoUserNamespaces != "" {
		return poor("pods with user namespaces (hostUsers: false) are refused: "+d.NoUserNamespaces,
			"They need ID-mapped mounts of overlayfs (Linux 5.19), and root on a file system that has them, such as ext4, xfs "+
				"or btrfs.\nSee which kernel runs and what root is on: uname -r; findmnt -T "+cfg.Root+"\n"+
				"After a change: systemctl restart berthd")
	}
	const nobody = 1<<32 - 2 // owns nothing
	if dir, mode := fileattr.Barring(cfg.State, nobody, nobody); dir != "" && dir != filepath.Clean(cfg.State) {
		return poor(fmt.Sprintf("%s, of mode %#o, keeps pods with user namespaces from their root file systems in %s",
			dir, mode, cfg.State),
			"Their containers do not start where libcontainer or an OCI runtime sets them up.\n"+
				"Try: chmod o+x "+dir+", or set state in the daemon's configuration to a directory that all may reach.")
	}
	return good("pods with user namespaces reach " + cfg.State)
}

// Unsynced is what the daemon says of layers of images that are not known to be on disk.
type Unsynced struct {
	Layers  int
	Since   time.Time // when a sync was asked for that is not over; zero: none was
	Failure string    // of the last sync, or of one that has left layers in doubt; empty: none
	Synced  time.Time // when the daemon has synced last; zero: never, or it is too old to tell
}

// synced says how long ago the last sync was.
func (u *Unsynced) synced() string {
	if u.Synced.IsZero() {
		return ""
	}
	return fmt.Sprintf(", last synced %s ago", max(0, time.Since(u.Synced)).Round(time.Second))
}

// slowSync is how long a disk may take before that is worth a word.
const slowSync = 5 * time.Minute

// checkSync says what would have to be pulled again after a failure of power.
func checkSync(_ context.Context, cfg Config) Finding {
	if cfg.Daemon == nil || cfg.Daemon.Unsynced == nil {
		return good("not checked: berthd does not answer")
	}
	u := *cfg.Daemon.Unsynced
	detail := fmt.Sprintf("%d layers of images are not known to be on disk%s", u.Layers, u.synced())
	switch {
	case u.Failure != "":
		return poor(detail+": "+u.Failure,
			"Their images must be pulled again after a reboot, unless a sync that berthd tries every 30 seconds succeeds.\n"+
				"Look for errors of the disk: dmesg --level=err,warn")
	case u.Layers == 0:
		return good("all layers of images are on disk" + u.synced())
	case !u.Since.IsZero() && time.Since(u.Since) > slowSync:
		return poor(fmt.Sprintf("%s; a sync was asked for %s ago", detail, time.Since(u.Since).Round(time.Second)),
			"The disk is slow or hangs. Images that are not on disk must be pulled again after a failure of power.\n"+
				"Look at what writes to it: cat /proc/pressure/io")
	}
	return good(detail + ": a sync is under way")
}

// What is left of a disk when it gets tight. A kubelet evicts pods below 10 % by default.
const (
	tightShare = 0.10
	tightBytes = 5 << 30
	emptyBytes = 512 << 20
)

func checkDisk(_ context.Context, cfg Config) Finding {
	dir := existing(cfg.Root)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return bad(fmt.Sprintf("%s: %v", dir, err), diskAdvice(dir))
	}
	if err := unwritable(dir); err != nil {
		return bad(fmt.Sprintf("the file system of %s takes no writes: %v", dir, err), diskAdvice(dir))
	}
	return judgeDisk(dir, uint64(st.Bsize)*st.Blocks, uint64(st.Bsize)*st.Bavail, st.Files, st.Ffree)
}

// unwritable is the error of a file without a name that is made in a directory, if it says that the file system takes
// no writes. What else keeps a file from being made is not looked at: not all file systems have such files, and not all
// users may make them.
func unwritable(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	if disk.Unwritable(err) {
		return err
	}
	return nil
}

func judgeDisk(dir string, size, free, inodes, freeInodes uint64) Finding {
	detail := fmt.Sprintf("%.1f GiB of %.1f GiB free at %s", float64(free)/(1<<30), float64(size)/(1<<30), dir)
	const advice = "Make room: `berth rmi --unused` removes images that no container is made of."
	switch {
	case free < emptyBytes:
		return bad(detail, advice)
	case inodes > 0 && freeInodes*100 < inodes: // some file systems make inodes as they go and count none
		return bad(detail+", but less than 1 % of its inodes", advice)
	case float64(free) < tightShare*float64(size) && free < tightBytes:
		return poor(detail, advice)
	}
	return good(detail)
}
