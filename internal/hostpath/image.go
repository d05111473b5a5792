package hostpath

import (
	"context"
	"encoding/json"
	"time"

	"berth/internal/hostpath/inroot"
	"berth/internal/rootfs"
)

// remotePatience is how long a root file system with remote layers may take to be mounted, and a file in it to be read:
// both may have to wait for a registry.
const remotePatience = time.Minute

// MountRoot is rootfs.Mount in a child: the layers are of a file system that may not answer. There is one child at a
// time that waits for the same top layer for longer than it may.
func MountRoot(ctx context.Context, o rootfs.Options) (at string, err error) {
	data, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	key := o.Dir
	if len(o.Lowers) > 0 {
		key = o.Lowers[len(o.Lowers)-1]
	}
	err = remote.ask(actMount, key, &at, whileWanted(ctx), string(data))
	return at, err
}

func mountRoot(options string) (string, error) {
	var o rootfs.Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return "", err
	}
	return rootfs.Mount(context.Background(), o)
}

// ReadInRoot reads files of a root file system that may not answer, as inroot.Read does.
func ReadInRoot(ctx context.Context, root string, limit int64, names ...string) (files []string, err error) {
	data, err := json.Marshal(wanted{names, limit})
	if err != nil {
		return nil, err
	}
	err = remote.ask(actRead, root, &files, whileWanted(ctx), string(data))
	return files, err
}

type wanted struct {
	Names []string
	Limit int64
}

func readInRoot(root, what string) ([]string, error) {
	var w wanted
	if err := json.Unmarshal([]byte(what), &w); err != nil {
		return nil, err
	}
	files := make([]string, len(w.Names))
	for i, name := range w.Names {
		var err error
		if files[i], err = inroot.Read(root, name, w.Limit); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// PathInRoot is where a name is in a root file system that may not answer, as Resolver.Path of inroot says.
func PathInRoot(ctx context.Context, root, name string) (path string, err error) {
	err = remote.ask(actPath, root, &path, whileWanted(ctx), name)
	return path, err
}

// whileWanted says for how long a child is waited for.
func whileWanted(ctx context.Context) func() bool {
	end := time.Now().Add(remotePatience)
	return func() bool { return ctx.Err() == nil && time.Now().Before(end) }
}
