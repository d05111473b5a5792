package pod

import (
	"sync"

	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/storage"
	"berth/internal/state"
	"berth/internal/volume"
)

// Ahead is what New needs of a node with many pods and what takes long to read: their records and the list of mounts.
// It is read while the caller makes what else New needs.
type Ahead struct {
	dirs       *layout.Dirs
	pods       *record.Sandboxes
	containers *record.Containers
	mounts     func() ([]string, error)
	hidden     func()
}

// ReadAhead makes the directories of pods and begins to read. Of the configuration it takes where these are, the host
// and the log. The caller has locked Root and State, is in the mount namespace in which it will stay, and writes no
// records before New.
func ReadAhead(cfg *Config) (*Ahead, error) {
	dirs := &layout.Dirs{Root: cfg.Root, State: cfg.State, NetNSDir: cfg.NetNSDir, Pins: cfg.Host.Namespaces}
	if err := dirs.Make(); err != nil {
		return nil, err
	}
	for _, dir := range []string{dirs.Pods(), dirs.Containers(), dirs.StatePods()} {
		state.Spread(dir)
	}
	var roots storage.Rootfs = storage.Overlays{}
	if cfg.Host.Rootfs != nil {
		roots = cfg.Host.Rootfs
	}
	volumePath := func(name string) string { return volume.Path(dirs.Volumes(), name) }
	if cfg.Host.Volumes != nil {
		volumePath = cfg.Host.Volumes.Path
	}
	a := &Ahead{
		dirs:       dirs,
		pods:       record.NewSandboxes(dirs.Pods(), dirs.NetNS, cfg.Log),
		containers: record.NewContainers(dirs.Containers(), volumePath, cfg.Log),
	}
	a.pods.ReadAhead()
	a.containers.ReadAhead()
	a.mounts = begin(func() ([]string, error) { return roots.Mounts(dirs.Containers(), dirs.StatePods()) })
	hidden := begin(func() (struct{}, error) { dirs.Hide(cfg.Log); return struct{}{}, nil })
	a.hidden = func() { _, _ = hidden() }
	return a, nil
}

// begin calls a function in the background. What it returns waits for the result.
func begin[T any](fn func() (T, error)) func() (T, error) {
	once := sync.OnceValues(fn)
	go func() { _, _ = once() }()
	return once
}
