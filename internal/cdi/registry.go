package cdi

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

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
}

// files are the specifications as they were when one call read them. No two calls share them: the library completes
// devices while it injects them, for which it looks at paths of the host, whose file system may not answer.
type files struct {
	dirs  []string
	cache *cdi.Cache
}

// Open is the registry of directories; nil: DefaultDirs.
func Open(dirs []string) *Registry {
	if dirs == nil {
		dirs = DefaultDirs
	}
	setValidator()
	return &Registry{dirs: slices.Clone(dirs)}
}

// read reads the files: they change without notice, and containers with such devices are few. A broken file matters
// only to those who name its devices.
func (r *Registry) read() (*files, error) {
	if err := checkFiles(r.dirs); err != nil {
		return nil, err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(r.dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	return &files{dirs: r.dirs, cache: cache}, nil
}

// Annotated are the devices that annotations name, under keys that begin with cdi.k8s.io/.
func Annotated(annotations map[string]string) ([]string, error) {
	_, names, err := cdi.ParseAnnotations(annotations)
	return names, err
}

// Inject adds devices to a spec, by their qualified names, each once. The spec is changed only if all are found. The
// sources are the paths on the host of the device nodes that it adds, by those in the container.
func (r *Registry) Inject(spec *specs.Spec, names []string) (sources map[string]string, err error) {
	f, err := r.read()
	if err != nil {
		return nil, err
	}
	missing, err := f.cache.InjectDevices(spec, names...)
	if len(missing) > 0 {
		return nil, f.unknown(missing)
	}
	if err != nil {
		var where []string
		for _, name := range names {
			where = append(where, fmt.Sprintf("%s (%s)", name, f.defined(name)))
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(where, ", "), err)
	}
	return f.sources(names), nil
}

// unknown says of devices what the files have in their place.
func (f *files) unknown(names []string) error {
	var says []string
	for _, name := range names {
		vendor, class, _ := parser.ParseDevice(name)
		var has []string
		for _, s := range f.cache.GetVendorSpecs(vendor) {
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
			text += fmt.Sprintf(": no file in %s has the kind %s/%s", strings.Join(f.dirs, ", "), vendor, class)
		}
		says = append(says, text)
	}
	if broken := f.broken(); len(broken) > 0 {
		says = append(says, "broken files: "+strings.Join(broken, "; "))
	}
	return fmt.Errorf("%s", strings.Join(says, "; "))
}

// defined is the file and the line that a device is defined in.
func (f *files) defined(name string) string {
	d := f.cache.GetDevice(name)
	if d == nil {
		return "not on this node"
	}
	path := d.GetSpec().GetPath()
	return fmt.Sprintf("%s:%d", path, lineOfDevice(path, d.Name))
}

// broken says what is wrong with files, sorted, each with its line.
func (f *files) broken() []string {
	errs := f.cache.GetErrors()
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
	f, err := r.read()
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, qualified := range f.cache.ListDevices() {
		d := f.cache.GetDevice(qualified)
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
	return devices, f.broken()
}

// nodes are the device nodes of a device, those of all devices of its file included.
func nodes(d *cdi.Device) []*raw.DeviceNode {
	return slices.Concat(d.GetSpec().ContainerEdits.DeviceNodes, d.ContainerEdits.DeviceNodes)
}

// sources are the paths on the host of the device nodes of some devices, by those in the container.
func (f *files) sources(names []string) map[string]string {
	paths := map[string]string{}
	for _, name := range names {
		for _, node := range nodes(f.cache.GetDevice(name)) {
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
