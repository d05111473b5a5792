package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath/inroot"
	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/volume"
)

// CheckVolumes refuses mounts that name a volume and cannot be meant.
func CheckVolumes(cfg *model.ContainerConfig) error {
	for i, mount := range cfg.Mounts {
		if mount.Volume == "" {
			continue
		}
		if err := volume.CheckName(mount.Volume); err != nil {
			return mountField(i).Wrong(err)
		}
		if mount.HostPath != "" || mount.Image != nil {
			return mountField(i).Wrong(fmt.Errorf("only one of volume %s, host path and image can be set: %w", mount.Volume,
				errdefs.ErrInvalidArgument))
		}
	}
	return nil
}

// mountField names a container's mount in errors, by its place.
func mountField(i int) model.Field {
	return model.FieldContainerMounts + model.Field("["+strconv.Itoa(i)+"]")
}

// DeclaredVolumes are the container paths that an image declares as volumes, sorted.
func DeclaredVolumes(img *model.Image) []string {
	declared := make([]string, 0, len(img.Config.Volumes))
	for p := range maps.Keys(img.Config.Volumes) {
		declared = append(declared, path.Join("/", p))
	}
	slices.Sort(declared)
	return slices.Compact(declared)
}

// OwnVolumes are the declared paths for which a container gets a volume of its own: all but those at which it mounts
// something, or finds what every container has there. The error wraps errdefs.ErrInvalidArgument for a declared path
// that cannot be a volume, and where links of the image make the paths too long to resolve.
func OwnVolumes(ctx context.Context, declared []string, root string, cfg *model.ContainerConfig) ([]string, error) {
	if len(declared) == 0 {
		return nil, nil
	}
	// Links of the image lead elsewhere: /var/run/x is /run/x.
	resolver := inroot.NewResolver(ctx)
	place := func(p string) (string, error) {
		at, err := resolver.Place(root, p)
		return strings.TrimPrefix(at, root), err
	}
	taken := map[string]bool{"/etc/hosts": true, "/etc/hostname": true, "/etc/resolv.conf": true}
	for _, mount := range cfg.Mounts {
		at, err := place(mount.ContainerPath)
		if err != nil {
			return nil, fmt.Errorf("mount at %q: %w", mount.ContainerPath, err)
		}
		taken[at] = true
	}
	var own []string
	for _, p := range declared {
		at, err := place(p)
		if err != nil {
			return nil, fmt.Errorf("volume %q of the image: %w", p, err)
		}
		if at == "" {
			return nil, fmt.Errorf("the image declares %q, its root, as a volume: %w", p, errdefs.ErrInvalidArgument)
		}
		top, _, _ := strings.Cut(at[1:], "/")
		if taken[at] || top == "proc" || top == "sys" || top == "dev" {
			continue
		}
		taken[at] = true // two declared paths may be one
		own = append(own, p)
	}
	return own, nil
}

// content opens the directory in an image's root that a volume at a path begins with; nil: the image has none. Links on
// the way are expanded inside the root, by descriptors, since they are the image's.
func content(root, p string) (*os.File, error) {
	at, err := pathrs.OpenInRoot(root, p)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer at.Close()
	dir, err := pathrs.Reopen(at, os.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s is not a directory in the image: %w", p, errdefs.ErrInvalidArgument)
	}
	return dir, err
}

// FillVolumes makes the volumes of a container that are not there yet, and fills them. root is its root file system;
// prepare is called with each new volume while it is empty. It returns the container's mounts with the directories of
// all volumes in them.
func (st *Store) FillVolumes(ctx context.Context, c *record.ContainerEntry, pod *record.Sandbox, layers *image.Layers,
	root string, prepare func(ctx context.Context, at, dir string) error) (mounts []model.Mount, err error) {
	fill := func(p string, root func(context.Context) (string, error)) volume.Fill {
		return volume.Fill{
			Source: func(ctx context.Context) (*os.File, error) {
				at, err := root(ctx)
				if err != nil {
					return nil, err
				}
				return content(at, p)
			},
			Prepare: func(dir string) error { return prepare(ctx, path.Clean(p), dir) },
		}
	}
	r := c.Record()
	user := pod.Config.UserNamespace()
	if len(r.ImageVolumes) > 0 {
		if err := os.Mkdir(st.Dirs.ImageVolumes(c.ID()), 0o700); err != nil {
			return nil, err
		}
	}
	for i, p := range r.ImageVolumes {
		// The root file system shows owners as the pod's user namespace has them, and so will the volume.
		dir, f := st.Dirs.ImageVolume(c.ID(), i), fill(p, func(context.Context) (string, error) { return root, nil })
		if user != nil {
			f.UID, f.GID = rootfs.HostID(user.UIDs, 0), rootfs.HostID(user.GIDs, 0)
		}
		if err := st.Volumes.Populate(ctx, dir, f); err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", p, err)
		}
		mounts = append(mounts, model.Mount{ContainerPath: p, HostPath: dir, SELinuxRelabel: true})
	}
	isMounted := false
	plain := func(ctx context.Context) (string, error) {
		if user == nil {
			return root, nil
		}
		// A named volume may serve pods of several user namespaces: its owners are the image's own, and each pod maps them.
		isMounted = true
		return st.Rootfs.Mount(ctx, rootfs.Options{Dir: st.Dirs.Plain(c.ID()), Lowers: layers.Dirs, Readonly: true})
	}
	defer func() {
		if isMounted {
			err = errors.Join(err, st.Rootfs.Unmount(st.Dirs.Plain(c.ID())))
		}
	}()
	for i, mount := range r.Config.Mounts {
		if mount.Volume != "" && layers.Remote != nil {
			// Its content is copied from the image when it is new.
			return nil, mountField(i).Wrong(fmt.Errorf("the named volume %s for an image with layers of a remote snapshotter, "+
				"whose files berthd does not read: %w", mount.Volume, errdefs.ErrFailedPrecondition))
		}
		if mount.Volume != "" {
			mount.HostPath, err = st.Volumes.Use(ctx, mount.Volume, c.ID(), fill(mount.ContainerPath, plain))
			if err != nil {
				return nil, mountField(i).Wrong(err)
			}
			mount.SELinuxRelabel = true
			if user != nil && len(mount.UIDMappings) == 0 && len(mount.GIDMappings) == 0 {
				mount.UIDMappings, mount.GIDMappings = user.UIDs, user.GIDs
			}
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}
