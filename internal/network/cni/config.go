package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
)

// Selection is the network that a configuration directory selects.
type Selection struct {
	Network *libcni.NetworkConfigList // of the lexically first file that is valid; nil: none is
	File    string                    // where it is from
	Broken  []error                   // of the files before it, or of all where none is valid
}

// Empty tells that there is no file at all, not even a broken one.
func (s Selection) Empty() bool { return s.Network == nil && len(s.Broken) == 0 }

// load reads a directory. One that is not there is empty. Where a network is named, files of others are passed over.
func load(dir, network string, findPlugin func(string) error) Selection {
	var s Selection
	if dir == "" {
		return s
	}
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			s.Broken = append(s.Broken, err)
		}
		return s
	}
	var others []string // names of networks
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			continue
		}
		var list *libcni.NetworkConfigList
		switch filepath.Ext(path) {
		case ".conflist":
			list, err = libcni.NetworkConfFromFile(path)
		case ".conf", ".json":
			list, err = single(path)
		default:
			continue
		}
		if err == nil && network != "" && list.Name != network {
			others = append(others, list.Name)
			continue
		}
		if err == nil {
			err = validate(list, findPlugin)
		}
		if err != nil {
			s.Broken = append(s.Broken, fmt.Errorf("%s: %w", path, err))
			continue
		}
		s.Network, s.File = list, path
		return s
	}
	if len(others) > 0 {
		s.Broken = append(s.Broken, fmt.Errorf("%s: no file has the network %q that network.cni_network names; there are %q",
			dir, network, others))
	}
	return s
}

// Check says what keeps files of a directory from being used, those after the first that can be used left out. network
// is the name of the network that is wanted; empty: any.
func Check(confDir, network string, binDirs []string) []error {
	return load(confDir, network, findIn(binDirs)).Broken
}

// findIn looks for a plugin in directories.
func findIn(binDirs []string) func(plugin string) error {
	return func(plugin string) error {
		_, err := (&executor{}).FindInPath(plugin, binDirs)
		return err
	}
}

// single reads a file that holds one plugin's configuration, or a list in spite of its name.
func single(path string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var probe struct {
		Plugins json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(data, &probe) == nil && probe.Plugins != nil {
		return libcni.NetworkConfFromFile(path)
	}
	conf, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	return &libcni.NetworkConfigList{
		Name: conf.Network.Name, CNIVersion: conf.Network.CNIVersion, Plugins: []*libcni.PluginConfig{conf}, Bytes: data,
	}, nil
}

func validate(list *libcni.NetworkConfigList, findPlugin func(string) error) error {
	if list.Name == "" {
		return errors.New("the network has no name")
	}
	if len(list.Plugins) == 0 {
		return errors.New("the network has no plugins")
	}
	for _, p := range list.Plugins {
		if err := findPlugin(p.Network.Type); err != nil {
			return err
		}
	}
	return nil
}

// encode writes a list as one document, with the plugins that libcni read from files of their own in it.
func encode(list *libcni.NetworkConfigList) (json.RawMessage, error) {
	plugins := make([]json.RawMessage, len(list.Plugins))
	for i, p := range list.Plugins {
		plugins[i] = p.Bytes
	}
	return json.Marshal(map[string]any{
		"name": list.Name, "cniVersion": list.CNIVersion, "disableCheck": list.DisableCheck, "disableGC": list.DisableGC,
		"loadOnlyInlinedPlugins": true, "plugins": plugins,
	})
}

// follower tells when a directory may have changed. While the directory is not there it watches the nearest parent
// that is.
type follower struct {
	dir     string
	watcher *fsnotify.Watcher // nil: the node has no inotify instance left; the directory is read each time then
	blind   atomic.Bool       // nothing can be watched, as where the node has no inotify watch left; likewise
	dirty   atomic.Bool
	done    chan struct{}
}

func follow(dir string) *follower {
	f := &follower{dir: dir, done: make(chan struct{})}
	f.dirty.Store(true)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		close(f.done)
		return f
	}
	f.watcher = w
	f.arm()
	go f.run()
	return f
}

// arm watches the directory, or the parent in which it or its own parent will appear.
func (f *follower) arm() {
	for path := filepath.Clean(f.dir); ; path = filepath.Dir(path) {
		err := f.watcher.Add(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) || path == filepath.Dir(path) {
			f.blind.Store(err != nil)
			return
		}
	}
}

func (f *follower) run() {
	defer close(f.done)
	for {
		select {
		case event, ok := <-f.watcher.Events:
			if !ok {
				return
			}
			// What happens beside the directory does not matter, what happens in it and above it does.
			if under := filepath.Dir(event.Name) == f.dir || strings.HasPrefix(f.dir+"/", event.Name+"/"); under {
				f.arm()
				f.dirty.Store(true)
			}
		case _, ok := <-f.watcher.Errors: // events were lost
			if !ok {
				return
			}
			f.dirty.Store(true)
		}
	}
}

// changed tells whether there may have been a change since it was last asked.
func (f *follower) changed() bool { return f.dirty.Swap(false) || f.watcher == nil || f.blind.Load() }

func (f *follower) close() {
	if f.watcher != nil {
		f.watcher.Close()
	}
	<-f.done
}
