package libcontainer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath/inroot"
)

// CRIU knows a mount of the host's by a key, and is told of it by the text "mnt[KEY]:PATH". libcontainer's keys are
// where the links in the container's root lead the mount points at that moment. A container that has exchanged links or
// directories since the mounts were made could give a mount the key of another one, and by a name with "]:" in it a key
// a path that is none of its mounts. Neither libcontainer nor CRIU looks, so that is done here. The container stands
// still, or does not run yet, and nobody else writes to its root.

// external is a mount that libcontainer names to CRIU.
type external struct {
	source string
	point  string // in the container, as it was asked for
	key    string
	bind   bool // the mount is a bind mount of the configuration
}

// externals are the mounts that libcontainer names to CRIU for a container. It refuses those with a key that reads as
// two.
func externals(config *configs.Config) ([]external, error) {
	var out []external
	for _, m := range config.Mounts {
		switch m.Device {
		case "bind":
			out = append(out, external{source: m.Source, point: m.Destination, bind: true})
		case "cgroup":
			if cgroups.IsCgroup2UnifiedMode() || config.Namespaces.Contains(configs.NEWCGROUP) {
				continue
			}
			mounts, err := cgroups.GetCgroupMounts(false)
			if err != nil {
				return nil, err
			}
			for _, c := range mounts {
				out = append(out, external{point: filepath.Join(m.Destination, filepath.Base(c.Mountpoint))})
			}
		}
	}
	out = append(out, external{point: "/dev/null"}) // for the masks
	for _, d := range config.Devices {
		out = append(out, external{point: d.Path})
	}
	resolver := inroot.NewResolver(context.Background())
	for i := range out {
		e := &out[i]
		e.point = filepath.Clean("/" + strings.TrimPrefix(e.point, config.Rootfs))
		at, err := resolver.Place(config.Rootfs, e.point)
		if err != nil {
			return nil, fmt.Errorf("mount at %q: %w: %w", e.point, err, errdefs.ErrFailedPrecondition)
		}
		e.key = strings.TrimPrefix(at, filepath.Clean(config.Rootfs))
		switch {
		case strings.Contains(e.key, "]:"):
			return nil, fmt.Errorf("mount at %q: in the container this is %q, which CRIU would take for something else: %w",
				e.point, e.key, errdefs.ErrFailedPrecondition)
		case !e.bind && e.key != e.point:
			return nil, fmt.Errorf("%q is %q in the container's root: %w", e.point, e.key, errdefs.ErrFailedPrecondition)
		}
	}
	return out, nil
}

// mountsHaveTheirKeys refuses to write a container down unless each of its bind mounts is where its key says.
func mountsHaveTheirKeys(config *configs.Config, pid int) error {
	mounts, err := externals(config)
	if err != nil {
		return err
	}
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, m := range mounts {
		if !m.bind {
			continue
		}
		var source, mounted unix.Stat_t
		err := unix.Stat(m.source, &source)
		if err == nil {
			err = statIn(root, m.key, &mounted)
		}
		switch {
		case err != nil:
			return fmt.Errorf("mount at %q: %w: %w", m.point, err, errdefs.ErrFailedPrecondition)
		case source.Dev != mounted.Dev || source.Ino != mounted.Ino:
			return fmt.Errorf("mount at %q: %s, its source, is not what the container has at %q by now: %w",
				m.point, m.source, m.key, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// statIn looks at a file of a container, by a path without links.
func statIn(root *os.File, path string, st *unix.Stat_t) error {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}
