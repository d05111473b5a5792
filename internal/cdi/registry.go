package cdi

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	raw "tags.cncf.io/container-device-interface/specs-go"
)

// DefaultDirs are searched where nobody names others. What is in a later one wins.
var DefaultDirs = cdi.DefaultSpecDirs

// Registry is the specifications of some directories. Its methods may be called concurrently.
type Registry struct {
	dirs []string

	mu    sync.Mutex // held by each use of the cache: the library completes cached devices while it injects them
	cache *cdi.Cache // nil before the first use
}

var registries struct {
	sync.Mutex
	byDirs map[string]*Registry
}

// Open is the registry of directories; nil: DefaultDirs.
func Open(dirs []string) *Registry {
	if dirs == nil {
		dirs = DefaultDirs
	}
	key := strings.Join(dirs, "\x00")
	registries.Lock()
	defer registries.Unlock()
	if r := registries.byDirs[key]; r != nil {
		return r
	}
	setValidator()
	r := &Registry{dirs: slices.Clone(dirs)}
	if registries.byDirs == nil {
		registries.byDirs = map[string]*Registry{}
	}
	registries.byDirs[key] = r
	return r
}

// refresh reads the files again: they change without notice, and containers with such devices are few.
func (r *Registry) refresh() error {
	if err := checkFiles(r.dirs); err != nil {
		return err
	}
	if r.cache != nil {
		_ = r.cache.Refresh() // a broken file matters only to those who name its devices
		return nil
	}
	var err error
	r.cache, err = cdi.NewCache(cdi.WithSpecDirs(r.dirs...), cdi.WithAutoRefresh(false))
	return err
}

// Annotated are the devices that annotations name, under keys that begin with cdi.k8s.io/.
func Annotated(annotations map[string]string) ([]string, error) {
	_, names, err := cdi.ParseAnnotations(annotations)
	return names, err
}

// Inject adds devices to a spec, by their qualified names, each once. The spec is changed only if all are found.
func (r *Registry) Inject(spec *specs.Spec, names []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return err
	}
	missing, err := r.cache.InjectDevices(spec, names...)
	if len(missing) > 0 {
		return r.unknown(missing)
	}
	if err != nil {
		var where []string
		for _, name := range names {
			where = append(where, fmt.Sprintf("%s (%s)", name, r.defined(name)))
		}
		return fmt.Errorf("%s: %w", strings.Join(where, ", "), err)
	}
	return nil
}

// unknown says of devices what the files have in their place.
func (r *Registry) unknown(names []string) error {
	var says []string
	for _, name := range names {
		vendor, class, _ := parser.ParseDevice(name)
		var has []string
		for _, s := range r.cache.GetVendorSpecs(vendor) {
			if s.GetClass() != class {
				continue
			}
			var devices []string
			for _, d := range s.Devices {
				devices = append(devices, d.Name)
			}
			has = append(has, fmt.Sprintf("%s:%d has %s of this kind", s.GetPath(), lineOfKind(s.GetPath()),
				strings.Join(devices, ", ")))
		}
		text := fmt.Sprintf("%s: not on this node", name)
		if len(has) > 0 {
			text += ": " + strings.Join(has, "; ")
		} else {
			text += fmt.Sprintf(": no file in %s has the kind %s/%s", strings.Join(r.dirs, ", "), vendor, class)
		}
		says = append(says, text)
	}
	if broken := r.broken(); len(broken) > 0 {
		says = append(says, "broken files: "+strings.Join(broken, "; "))
	}
	return fmt.Errorf("%s", strings.Join(says, "; "))
}

// defined is the file and the line that a device is defined in.
func (r *Registry) defined(name string) string {
	d := r.cache.GetDevice(name)
	if d == nil {
		return "not on this node"
	}
	path := d.GetSpec().GetPath()
	return fmt.Sprintf("%s:%d", path, lineOfDevice(path, d.Name))
}

// broken says what is wrong with files, sorted, each with its line.
func (r *Registry) broken() []string {
	errs := r.cache.GetErrors()
	var out []string
	for _, path := range slices.Sorted(maps.Keys(errs)) {
		for _, err := range errs[path] {
			out = append(out, fmt.Sprintf("%s:%d: %v", path, lineOfError(path, err), err))
		}
	}
	return out
}

// Device is a device of a specification.
type Device struct {
	Name  string   // in its kind
	Nodes []string // its device nodes on the host
}

// Devices are the devices of a kind (vendor.com/class), sorted by name, and what is wrong with files of any kind.
func (r *Registry) Devices(kind string) (devices []Device, problems []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return nil, []string{err.Error()}
	}
	for _, qualified := range r.cache.ListDevices() {
		d := r.cache.GetDevice(qualified)
		name, ok := strings.CutPrefix(qualified, kind+"=")
		if !ok || d == nil {
			continue
		}
		one := Device{Name: name}
		for _, node := range nodes(d) {
			one.Nodes = append(one.Nodes, cmp.Or(node.HostPath, node.Path))
		}
		devices = append(devices, one)
	}
	return devices, r.broken()
}

// nodes are the device nodes of a device, those of all devices of its file included.
func nodes(d *cdi.Device) []*raw.DeviceNode {
	return slices.Concat(d.GetSpec().ContainerEdits.DeviceNodes, d.ContainerEdits.DeviceNodes)
}

// HostPaths are the paths on the host of the device nodes that Inject has added, by those in the container.
func (r *Registry) HostPaths(names []string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	paths := map[string]string{}
	for _, name := range names {
		d := r.cache.GetDevice(name)
		if d == nil {
			continue // its file went away meanwhile
		}
		for _, node := range nodes(d) {
			paths[node.Path] = cmp.Or(node.HostPath, node.Path)
		}
	}
	return paths
}

// Dirs are the directories of the registry.
func (r *Registry) Dirs() []string { return slices.Clone(r.dirs) }

func read(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil // it went away meanwhile
	}
	return data
}
