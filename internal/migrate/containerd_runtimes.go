package migrate

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/annotation"
	"berth/internal/config"
)

// handler translates a runtime handler.
func (t *containerdConfig) handler(path []string, name string, settings map[string]any) {
	from := dotted(path...)
	if settings == nil {
		return
	}
	options := table(settings["options"])
	binary := text(options["BinaryName"])
	set := func(key, twin string, value any) {
		t.set(from+"."+key, "runtimes\x00"+name+"\x00"+twin, value)
	}
	switch kind := text(settings["runtime_type"]); {
	case kind == runscShim:
		if !t.runsc(from, options, set) {
			return
		}
	case kind != "" && kind != runcShim:
		if !t.shim(from, config.Runtime{RuntimeType: kind, Path: text(settings["runtime_path"])}, options, set) {
			return
		}
	case binary == "" || filepath.Base(binary) == "runc":
		t.builtin(from+".runtime_type", name)
	default:
		file, err := exec.LookPath(binary)
		if err == nil {
			file, err = filepath.Abs(file)
		}
		if err != nil {
			t.left(from+".options.BinaryName", "the handler is left out: %v", err)
			return
		}
		set("runtime_type", "type", "oci")
		set("options.BinaryName", "path", file)
		if root := text(options["Root"]); root != "" {
			set("options.Root", "root", root)
		}
	}
	t.handlers++
	driver := "cgroupfs"
	if on, _ := options["SystemdCgroup"].(bool); on {
		driver = "systemd"
	}
	if t.drivers == nil {
		t.drivers = map[string]string{}
	}
	t.drivers[name] = driver
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		t.annotations(from+"."+key, name, texts(settings[key]))
	}
	for _, key := range keys(settings) {
		value := settings[key]
		switch key {
		case "runtime_type", "options", "pod_annotations", "container_annotations":
		case "privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed", "cgroup_writable":
			if on, _ := value.(bool); on {
				set(key, key, true)
			}
		case "snapshotter":
			switch name := text(value); name {
			case "", "overlayfs":
			default:
				t.left(from+"."+key, "%s: Berth has one snapshotter for all handlers: snapshotter.name", name)
			}
		case "runtime_path":
			if kind := text(settings["runtime_type"]); kind != "" && kind != runcShim && kind != runscShim {
				continue // shim has set it
			}
			if !empty(value) {
				t.note(from+"."+key, Needless, "the path of a shim, and Berth has none")
			}
		default:
			t.look(from+"."+key, key, value)
		}
	}
	if kind := text(settings["runtime_type"]); kind == "" || kind == runcShim {
		t.shimOptions(from+".options.", options)
	}
}

// annotations adds names and patterns to the annotations that a handler passes on to its runtime.
func (p *Plan) annotations(from, handler string, patterns []string) {
	list, _ := table(table(p.settings["runtimes"])[handler])["annotations"].([]string)
	before := len(list)
	for _, pattern := range patterns {
		if err := annotation.CheckPattern(pattern); err != nil {
			p.left(from, "%v", err)
			continue
		}
		if !slices.Contains(list, pattern) {
			list = append(list, pattern)
		}
		switch withheld := annotation.Withheld(pattern); {
		case len(withheld) == 0:
		case annotation.Devices(pattern):
			p.left(from, "%q: berthd itself gives containers the devices of a device plugin that such annotations name. It "+
				"passes an annotation on to the runtime only if its full name is in runtimes.%s.annotations", pattern, handler)
		default:
			p.left(from, "%q: annotations that begin with %s tell a runtime what to do as root. They are passed on only if "+
				"their full names are in runtimes.%s.annotations: add those that pods need", pattern,
				strings.Join(withheld, ", "), handler)
		}
	}
	if len(list) > before {
		p.set(from, "runtimes\x00"+handler+"\x00annotations", list)
	}
}

// shim translates a handler of another shim. It is false where that is not installed.
func (p *Plan) shim(from string, r config.Runtime, options map[string]any, set func(key, twin string, value any)) bool {
	if r.Path == "" && config.ShimBinary(r.RuntimeType) == "" {
		p.left(from+".runtime_type", "%q is no name of a shim", r.RuntimeType)
		return false
	}
	if missing := r.ShimMissing(); missing != "" {
		p.left(from+".runtime_type", "the handler is left out: %s", missing)
		return false
	}
	set("runtime_type", "type", config.RuntimeShim)
	if r.RuntimeType != "" {
		set("runtime_type", "runtime_type", r.RuntimeType)
	}
	if r.Path != "" {
		set("runtime_path", "path", r.Path)
	}
	for _, key := range keys(options) {
		if !empty(options[key]) {
			set("options."+key, "options\x00"+key, options[key])
		}
	}
	return true
}

// runsc translates a handler of gVisor's shim. It is false where there is no runsc. The shim reads a file of its own,
// which names runsc's binary, its root and its flags.
func (t *containerdConfig) runsc(from string, options map[string]any, set func(key, twin string, value any)) bool {
	var shim struct {
		BinaryName string         `toml:"binary_name"`
		Root       string         `toml:"root"`
		Flags      map[string]any `toml:"runsc_config"`
	}
	path := text(options["ConfigPath"])
	if path != "" {
		data, err := os.ReadFile(path)
		if err == nil {
			err = toml.Unmarshal(data, &shim)
		}
		if err != nil {
			t.left(from+".options.ConfigPath", "its runsc_config is not translated: %v", err)
		}
	}
	file, err := exec.LookPath(cmp.Or(shim.BinaryName, "runsc"))
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err != nil {
		t.left(from+".runtime_type", "the handler is left out: %v", err)
		return false
	}
	set("runtime_type", "type", "oci")
	set("runtime_type", "path", file)
	set("runtime_type", "sandbox_container", true)
	if shim.Root != "" {
		set("options.ConfigPath", "root", shim.Root)
	}
	var flags []string
	for _, name := range keys(shim.Flags) {
		switch name {
		case "root", "log", "log-format", "systemd-cgroup":
			t.note(from+".options.ConfigPath", Needless, name+" of runsc_config is set by berthd")
		default:
			flags = append(flags, fmt.Sprintf("--%s=%v", name, shim.Flags[name]))
		}
	}
	if len(flags) > 0 {
		set("options.ConfigPath", "flags", flags)
	}
	return true
}

// shimOptions says what becomes of the other options of containerd's shim for runc.
func (t *containerdConfig) shimOptions(from string, options map[string]any) {
	for _, key := range keys(options) {
		switch key {
		case "BinaryName", "Root", "SystemdCgroup":
		case "TypeUrl", "ConfigPath", "ShimCgroup", "IoUid", "IoGid", "NoNewKeyring", "CriuPath", "CriuImagePath",
			"CriuWorkPath", "NoPivotRoot":
			if !empty(options[key]) {
				t.left(from+key, "an option of containerd's shim, and Berth has none")
			}
		default:
			if !empty(options[key]) {
				t.left(from+key, "Berth does not know this option")
			}
		}
	}
}
