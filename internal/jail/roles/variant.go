package roles

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/image/unpack"
	"berth/internal/image/variant"
	"berth/internal/jail/child"
)

// planVariant looks at the layers below.
func planVariant(t *child.Task) (any, error) {
	var task variant.PlanTask
	if err := t.Decode(&task); err != nil {
		return nil, err
	}
	return variant.Plan(context.Background(), task.Implied, task.Root, t.Dirs, task.Lookups, t.Xattrs)
}

// makeVariant makes what another child has planned.
func makeVariant(t *child.Task) (any, error) {
	var task variant.MakeTask
	if err := t.Decode(&task); err != nil {
		return nil, err
	}
	home := t.Dirs[0]
	fd, err := unix.Openat(int(home.Fd()), task.Layer, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: task.Layer, Err: err}
	}
	layer := os.NewFile(uintptr(fd), task.Layer)
	defer layer.Close()
	return variant.Make(context.Background(), variant.Request{
		Layer: layer, Implied: task.Implied, Placement: task.Placement, Home: home, Name: task.Name,
		Xattrs: t.Xattrs, Chown: t.Chown,
	})
}

// checkVariant looks at what was made, on top of the layers below.
func checkVariant(t *child.Task) (any, error) {
	var implied unpack.Implied
	if err := t.Decode(&implied); err != nil {
		return nil, err
	}
	return nil, variant.Check(context.Background(), implied, t.Dirs[0], t.Dirs[1:], t.Xattrs)
}
