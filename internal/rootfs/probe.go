package rootfs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// ErrOwnersNotMapped says that root file systems cannot be mounted for pods with user namespaces.
var ErrOwnersNotMapped = errors.New("the kernel does not map the owners of files into a user namespace here")

// ProbeOwners tries whether root file systems can be mounted for pods with user namespaces, whose layers are on the
// file system of dir: it mounts an overlay of ID-mapped directories in dir, which it makes and removes. That depends on
// the kernel (Linux 5.19, or a distribution that has brought it to an older one) and on the file system. The error is
// ErrOwnersNotMapped if they cannot; any other error says that it could not be tried. It takes some milliseconds, most
// of them for a process that makes a user namespace.
func ProbeOwners(ctx context.Context, dir string) error {
	if err := Remove(ctx, dir); err != nil { // an earlier one was killed
		return err
	}
	ids := []model.IDMapping{{HostID: 1, Length: 1}}
	_, err := Mount(ctx, Options{Dir: dir, Readonly: true, UIDs: ids, GIDs: ids})
	refused := slices.ContainsFunc([]error{unix.ENOSYS, unix.EINVAL, unix.EPERM, unix.EOPNOTSUPP}, func(e error) bool {
		return errors.Is(err, e)
	})
	if refused {
		err = fmt.Errorf("%w: %w", ErrOwnersNotMapped, err)
	}
	if rmErr := Remove(context.WithoutCancel(ctx), dir); err == nil {
		err = rmErr
	}
	return err
}
