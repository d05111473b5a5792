package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/config"
)

// Where containerd has its files when nothing says otherwise.
const (
	ContainerdConfig = "/etc/containerd/config.toml"
	containerdRoot   = "/var/lib/containerd"
	containerdSocket = "/run/containerd/containerd.sock"
)

// certsDirs are where containerd 2 looks for registries when no key says where.
var certsDirs = []string{"/etc/containerd/certs.d", "/etc/docker/certs.d"}

// verifierPlugin is containerd's plugin for image verifiers, and verifierDir is where it looks for them when no key
// says where.
const verifierPlugin = "io.containerd.image-verifier.v1.bindir"

var verifierDir = "/opt/containerd/image-verifier/bin"

// criPlugins are the tables of the CRI plugin in versions 3, 2 and 1 of the file.
var criPlugins = []string{
	"io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "cri",
}

// FromContainerd translates the configuration in a file and in those that it imports. dir is where Berth's
// configuration is. A file that is not there is containerd's default.
func FromContainerd(file, dir string) (*Plan, error) {
	t := &containerdConfig{Plan: newPlan(Containerd, dir), version: 3}
	t.Store, t.Socket = containerdRoot, containerdSocket
	tree, err := t.load(file)
	if err != nil {
		return nil, err
	}
	t.global(tree)
	plugins := table(tree["plugins"])
	for _, name := range keys(plugins) {
		if slices.Contains(criPlugins, name) {
			t.section([]string{"plugins", name}, table(plugins[name]))
		} else {
			t.otherPlugin(name, table(plugins[name]))
		}
	}
	t.verifiers(dotted("plugins", verifierPlugin), table(plugins[verifierPlugin]))
	t.snapshotters(table(tree["proxy_plugins"]))
	if err := t.decide(); err != nil {
		return nil, err
	}
	return t.Plan, nil
}

// containerdConfig translates one configuration.
type containerdConfig struct {
	*Plan

	version         int64
	registry        registries
	defaultHandler  string
	drivers         map[string]string // cgroup drivers by handler
	noPorts, noICMP bool
	selinux         bool              // enable_selinux
	selinuxKey      string            // enable_selinux with its tables; empty: not given
	template        bool              // containerd makes the CNI configuration itself
	snapshotter     map[string]string // names of snapshotters, by the key that names them
	tls             bool
	cert, key       string
	handlers        int
}

// load reads a file, and what it imports over it. The order is containerd's: what a file imports comes after all
// that the files before it have imported. A file that is not there is an empty one, but a file that it imports is not.
func (t *containerdConfig) load(file string) (map[string]any, error) {
	whole, pending := map[string]any{}, []string{file}
	for len(pending) > 0 {
		path := pending[0]
		pending = pending[1:]
		if slices.Contains(t.Read, path) {
			continue
		}
		data, err := os.ReadFile(path)
		if path == file && errors.Is(err, fs.ErrNotExist) {
			return whole, nil
		}
		if err != nil {
			return nil, fmt.Errorf("containerd's configuration: %w", err)
		}
		var one map[string]any
		if err := toml.Unmarshal(data, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(t.Read) == 0 {
			t.version, _ = one["version"].(int64)
		}
		t.Read = append(t.Read, path)
		for _, pattern := range texts(one["imports"]) {
			if pattern = filepath.Clean(pattern); !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			if !strings.Contains(pattern, "*") {
				pending = append(pending, pattern)
				continue
			}
			matches, err := filepath.Glob(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: imports %q: %w", path, pattern, err)
			}
			pending = append(pending, matches...)
		}
		delete(one, "imports")
		delete(one, "version")
		merge(whole, one)
	}
	return whole, nil
}

// levels are containerd's levels of logging.
var levels = map[string]string{
	"trace": "debug", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error",
	"fatal": "error", "panic": "error",
}

// global translates what is in no plugin.
func (t *containerdConfig) global(tree map[string]any) {
	for _, key := range keys(tree) {
		value := tree[key]
		if empty(value) || key == "plugins" {
			continue
		}
		switch key {
		case "root":
			t.Store = text(value)
			t.elsewhere(key, t.Store, containerdRoot)
		case "state", "temp":
			t.note(key, Needless, "Berth has directories of its own: root, state")
		case "grpc":
			if address := text(table(value)["address"]); address != "" {
				t.Socket = address
			}
			t.server(key, table(value))
			t.overNetwork(key+".tcp_address", table(value)["tcp_address"])
		case "ttrpc", "timeouts", "cgroup", "plugin_dir", "required_plugins":
			t.note(key, Needless, "of containerd's own plugins and shims, which Berth has not")
		case "debug":
			if level, ok := levels[text(table(value)["level"])]; ok {
				t.set("debug.level", "log_level", level)
			}
			if format := text(table(value)["format"]); format == "text" || format == "json" {
				t.set("debug.format", "log_format", format)
			}
			t.debugSocket("debug.address", table(value)["address"])
		case "metrics":
			if address := text(table(value)["address"]); address != "" {
				t.set("metrics.address", "metrics.address", address)
			}
		case "oom_score":
			t.set(key, "oom_score_adj", value)
		case "disabled_plugins":
			for _, name := range texts(value) {
				if slices.Contains(criPlugins, name) {
					t.left(key, "the CRI plugin is disabled: no kubelet has used this containerd")
				}
			}
		case "proxy_plugins": // see snapshotters
		case "stream_processors":
			t.streamProcessors(key, table(value))
		default:
			t.left(key, "Berth does not know this key")
		}
	}
	t.set("grpc.address", "containerd_address", t.Socket)
}

// server looks at the keys of containerd's own socket, besides its address.
func (t *containerdConfig) server(prefix string, grpc map[string]any) {
	for _, key := range keys(grpc) {
		value, from := grpc[key], prefix+"."+key
		switch {
		case empty(value):
		case key == "gid":
			t.set(from, "socket_group", fmt.Sprint(value))
		case key == "uid":
			t.left(from, "Berth's sockets belong to root: by hand: socket_group is a group that may use them too")
		case key == "max_recv_message_size" || key == "max_send_message_size":
			if value != int64(16<<20) { // containerd's default
				t.left(from, "%v has no effect in Berth: a request may have 16 MiB, and an answer 32 MiB", value)
			}
		}
	}
}

// overNetwork reports an address at which containerd serves its API over the network.
func (t *containerdConfig) overNetwork(from string, address any) {
	if !empty(address) {
		t.left(from, "%s: Berth serves no API over the network", written(address))
	}
}

// debugSocket reports an address at which containerd serves pprof.
func (t *containerdConfig) debugSocket(from string, address any) {
	if !empty(address) {
		t.left(from, "%s: Berth serves pprof on a unix socket for root, debug.sock below state: by hand: debug.address is "+
			"another path for it", written(address))
	}
}

// otherPlugin is a plugin that is not the CRI's.
func (t *containerdConfig) otherPlugin(name string, settings map[string]any) {
	path := dotted("plugins", name)
	switch {
	case name == "io.containerd.server.v1.grpc":
		if address := text(settings["address"]); address != "" {
			t.Socket = address
			t.set(path+".address", "containerd_address", address)
		}
		t.server(path, settings)
	case name == "io.containerd.server.v1.grpc-tcp":
		t.overNetwork(path+".address", settings["address"])
	case name == "io.containerd.server.v1.debug":
		t.debugSocket(path+".address", settings["address"])
	case name == "io.containerd.server.v1.metrics" && text(settings["address"]) != "":
		t.set(path+".address", "metrics.address", text(settings["address"]))
	case name == verifierPlugin: // see verifiers: it looks for programs without a table too
	case strings.HasPrefix(name, "io.containerd.nri."):
		t.nri(path, settings)
	case strings.HasPrefix(name, "io.containerd.tracing."), name == "io.containerd.internal.v1.tracing":
		if endpoint := text(settings["endpoint"]); endpoint != "" && text(settings["protocol"]) == "grpc" {
			t.set(path+".endpoint", "tracing.endpoint", endpoint)
		} else if endpoint != "" {
			t.left(path+".endpoint", "by hand: tracing.endpoint, which wants OTLP over gRPC")
		}
	case name == "io.containerd.service.v1.tasks-service":
		if file := text(settings["blockio_config_file"]); file != "" {
			t.set(path+".blockio_config_file", "block_io_classes_file", file)
		}
		if text(settings["rdt_config_file"]) != "" {
			t.left(path+".rdt_config_file", "Berth has no classes of RDT")
		}
	case name == "io.containerd.transfer.v1.local":
		if n, _ := settings["max_concurrent_downloads"].(int64); n > 0 {
			t.set(path+".max_concurrent_downloads", "image.max_concurrent_downloads", n)
		}
		if from := path + ".concurrent_layer_fetch_buffer"; !empty(settings["concurrent_layer_fetch_buffer"]) {
			t.rangeSize(from, settings["concurrent_layer_fetch_buffer"])
		}
	case name == "io.containerd.snapshotter.v1.overlayfs":
		for _, key := range keys(settings) {
			switch {
			case empty(settings[key]):
			case key == "root_path":
				t.elsewhere(path+"."+key, text(settings[key]), containerdRoot+"/"+name)
			case key == "mount_options":
				t.left(path+"."+key, "%s: overlayfs has no options in Berth", written(settings[key]))
			default:
				t.note(path+"."+key, Needless, "of containerd's snapshotter, which Berth has not")
			}
		}
	case len(settings) == 0:
	default:
		t.note(path, Needless, "of a plugin of containerd that the CRI does not need")
	}
}

// snapshotters translates the remote snapshotter of all images. Berth has one for the node, with the sockets of proxy
// plugins, and none for single handlers.
func (t *containerdConfig) snapshotters(plugins map[string]any) {
	used := ""
	for _, from := range slices.Sorted(maps.Keys(t.snapshotter)) {
		name := t.snapshotter[from]
		plugin := table(plugins[name])
		switch {
		case name == "overlayfs":
			t.note(from, Needless, "layers are directories that overlayfs stacks")
		case plugin == nil || text(plugin["type"]) != "snapshot":
			t.left(from, "%s: Berth has no snapshotters of its own: layers are directories that overlayfs stacks", name)
		case strings.Contains(name, "nydus"):
			t.left(from, "%s: Berth does not unpack layers into a snapshotter, which images of Nydus need", name)
		case used == "":
			used = name
			t.set(from, "snapshotter.name", name)
			t.set(dotted("proxy_plugins", name, "address"), "snapshotter.address", text(plugin["address"]))
		}
	}
	for _, name := range keys(plugins) {
		switch kind := text(table(plugins[name])["type"]); {
		case name == used:
		case kind == "snapshot":
			t.note(dotted("proxy_plugins", name), Needless, "the CRI uses another snapshotter for its images")
		default:
			t.left(dotted("proxy_plugins", name), "Berth has no plugins of the type %q", kind)
		}
	}
}

// verifiers translates the settings of image verifiers, which have the same keys in Berth, where there is a verifier.
// In Berth, a directory without one keeps all images from being pulled, and containerd names a directory by default.
func (t *containerdConfig) verifiers(path string, settings map[string]any) {
	dir, given := settings["bin_dir"]
	if !given {
		dir = verifierDir
	}
	programs, err := os.ReadDir(text(dir))
	most, ok := settings["max_verifiers"].(int64)
	if !ok {
		most = int64(config.Default().ImageVerifier.MaxVerifiers)
	}
	switch {
	case len(programs) == 0 && err != nil && !errors.Is(err, fs.ErrNotExist):
		t.left(path+".bin_dir", "%v", err)
	case len(programs) == 0 && (given || settings != nil):
		t.note(path, Needless, fmt.Sprintf("%s has no image verifier", text(dir)))
	case len(programs) == 0:
	case most == 0:
		t.note(path+".max_verifiers", Needless, "containerd runs no image verifier, and Berth has none by default")
	default:
		t.set(path+".bin_dir", "image_verifier.bin_dir", text(dir))
		for _, key := range []string{"max_verifiers", "per_verifier_timeout"} {
			if value, ok := settings[key]; ok {
				t.set(path+"."+key, "image_verifier."+key, value)
			}
		}
		if most > 0 && int64(len(programs)) > most {
			t.left(path+".max_verifiers", "containerd runs the first %d of %d image verifiers; Berth pulls no image until "+
				"the others are removed or image_verifier.max_verifiers allows them", most, len(programs))
		}
	}
}

// nri looks at the settings of the Node Resource Interface, whose keys Berth has under the same names.
func (t *containerdConfig) nri(path string, settings map[string]any) {
	for _, key := range keys(settings) {
		value := settings[key]
		switch key {
		case "disable":
			if off, _ := value.(bool); off {
				t.set(path+"."+key, "nri.enable", "off")
			}
		case "socket_path", "plugin_path", "plugin_config_path", "plugin_registration_timeout", "plugin_request_timeout",
			"disable_connections":
			if !empty(value) {
				t.set(path+"."+key, "nri."+key, value)
			}
		case "default_validator":
			t.validator(path+"."+key, table(value))
		default:
			t.look(path+"."+key, key, value)
		}
	}
}

// validator translates the settings of NRI's default validator, which has the same keys in Berth.
func (p *Plan) validator(path string, settings map[string]any) {
	for _, key := range keys(settings) {
		twin := "nri.default_validator." + key
		switch {
		case empty(settings[key]):
		case slices.ContainsFunc(config.Entries(), func(e config.Entry) bool { return e.Key == twin }):
			p.set(path+"."+key, twin, settings[key])
		default:
			p.left(path+"."+key, "Berth does not know this key")
		}
	}
}

// section translates a table of the CRI plugin.
func (t *containerdConfig) section(path []string, settings map[string]any) {
	for _, key := range keys(settings) {
		value, at := settings[key], slices.Concat(path, []string{key})
		from := dotted(at...)
		switch key {
		case "containerd", "cni", "x509_key_pair_streaming", "image_decryption":
			if inner := table(value); inner != nil {
				t.section(at, inner)
			}
			continue
		case "runtimes":
			for _, name := range keys(table(value)) {
				t.handler(slices.Concat(at, []string{name}), name, table(table(value)[name]))
			}
			continue
		case "registry":
			t.registry.read(from, table(value))
			continue
		case "enable_unprivileged_ports", "enable_unprivileged_icmp":
			// Both are containerd 2's defaults and Berth's, so that it is false which says something.
			on, _ := value.(bool)
			t.noPorts = t.noPorts || !on && key == "enable_unprivileged_ports"
			t.noICMP = t.noICMP || !on && key == "enable_unprivileged_icmp"
			continue
		case "enable_selinux":
			t.selinux, _ = value.(bool)
			t.selinuxKey = from
			continue
		}
		if empty(value) || !t.setting(key, from, value) {
			t.look(from, key, value)
		}
	}
}

// same are keys that have the same meaning in Berth, under these names.
var same = map[string]string{
	"device_ownership_from_security_context": "device_ownership_from_security_context",
	"cdi_spec_dirs":                          "cdi_spec_dirs",
	"enable_experimental_restore_via_create": "checkpoint.restore_images",
	"stream_server_address":                  "stream.address",
	"stream_idle_timeout":                    "stream.idle_timeout",
	"max_concurrent_downloads":               "image.max_concurrent_downloads",
	"bin_dirs":                               "network.cni_bin_dirs",
	"conf_dir":                               "network.cni_conf_dir",
}

// setting translates a key of the CRI plugin that is no table of handlers or registries. It is false for one
// that has no translation.
func (t *containerdConfig) setting(key, from string, value any) bool {
	if twin, ok := same[key]; ok {
		t.set(from, twin, value)
		return true
	}
	switch key {
	case "snapshotter":
		if t.snapshotter == nil {
			t.snapshotter = map[string]string{}
		}
		t.snapshotter[from] = text(value)
	case "default_runtime_name":
		t.defaultHandler = text(value)
	case "unset_seccomp_profile":
		switch profile := text(value); {
		case profile == "unconfined":
			t.note(from, Needless, "as in Berth without a key")
		case profile == "runtime/default":
			t.set(from, "seccomp.default_profile", profile)
		default:
			t.set(from, "seccomp.default_profile", strings.TrimPrefix(profile, "localhost/"))
		}
	case "netns_mounts_under_state_dir":
		t.set(from, "network.netns_dir", "")
	case "ignore_image_defined_volumes":
		t.set(from, "image.declared_volumes", "ignore")
	case "stream_server_port":
		port, err := strconv.Atoi(text(value))
		if err != nil {
			t.left(from, "%q is no port", text(value))
		} else if port != 0 {
			t.set(from, "stream.port", int64(port))
		}
	case "enable_tls_streaming":
		t.tls = true
	case "tls_cert_file":
		t.cert = text(value)
	case "tls_key_file":
		t.key = text(value)
	case "image_pull_progress_timeout":
		if d, err := time.ParseDuration(text(value)); err != nil || d <= 0 {
			t.left(from, "image.timeout is a duration above 0")
		} else {
			t.set(from, "image.timeout", text(value))
		}
	case "concurrent_layer_fetch_buffer":
		t.rangeSize(from, value)
	case "bin_dir":
		t.set(from, "network.cni_bin_dirs", []string{text(value)})
	case "max_conf_num":
		if n, _ := value.(int64); n > 1 {
			t.left(from, "Berth connects pods to one network: network.cni_network names it; Multus makes several of it")
		} else {
			t.note(from, Needless, "one network in Berth too")
		}
	case "conf_template":
		t.template = true
		t.look(from, key, value)
	case "sandbox_image":
		t.Sandbox = text(value)
		t.note(from, Needless, "there is no sandbox image: a pod has no container of its own")
	case "pinned_images":
		var pinned []string
		for _, name := range keys(table(value)) {
			if name == "sandbox" {
				t.Sandbox = text(table(value)[name])
				t.note(from+".sandbox", Needless, "there is no sandbox image: a pod has no container of its own")
			} else {
				pinned = append(pinned, text(table(value)[name]))
			}
		}
		if len(pinned) > 0 {
			t.set(from, "image.pinned", pinned)
		}
	case "runtime_platforms":
		var found []string
		for _, name := range keys(table(value)) {
			if p := text(table(table(value)[name])["platform"]); p != "" && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
		if len(found) > 0 {
			t.left(from, "by hand: image.platform, one for the node: %s", strings.Join(found, ", "))
		}
	default:
		return false
	}
	return true
}

// rangeSize translates the size of the parts in which a layer is loaded over several connections. containerd does so
// only where there is a size, and Berth without one too.
func (t *containerdConfig) rangeSize(from string, value any) {
	n, _ := value.(int64)
	if text := fmt.Sprint(n); config.GoodRangeSize(text) {
		t.set(from, "image.range_size", text)
	} else {
		t.left(from, "image.range_size is between 64k and image.range_memory")
	}
}

// The shims of containerd and of gVisor: handlers of theirs need none in Berth.
const (
	runcShim  = "io.containerd.runc.v2"
	runscShim = "io.containerd.runsc.v1"
)

// decide translates what hangs on several keys.
func (t *containerdConfig) decide() error {
	if t.defaultHandler == "" {
		t.defaultHandler = "runc"
	}
	if _, there := t.drivers[t.defaultHandler]; there {
		t.set("default_runtime_name", "default_runtime", t.defaultHandler)
	} else if t.handlers > 0 || t.defaultHandler != "runc" {
		t.left("default_runtime_name", "pods that name no handler get default_runtime, builtin: the handler %s is not "+
			"translated", t.defaultHandler)
	}
	driver, there := t.drivers[t.defaultHandler]
	if !there {
		driver = "cgroupfs"
	}
	t.set(dotted(t.defaultHandler, "options", "SystemdCgroup"), "cgroup_driver", driver)
	for _, name := range slices.Sorted(mapKeys(t.drivers)) {
		if t.drivers[name] != driver {
			t.left(dotted(name, "options", "SystemdCgroup"), "the cgroup driver is one for the node: cgroup_driver = %q", driver)
		}
	}
	if !t.template {
		t.set("cni", "network.require_cni", true)
	}
	if t.noPorts || t.noICMP {
		list := []string{}
		if !t.noPorts {
			list = append(list, "net.ipv4.ip_unprivileged_port_start=0")
		}
		if !t.noICMP {
			list = append(list, "net.ipv4.ping_group_range=0 2147483647")
		}
		t.set("enable_unprivileged_ports, enable_unprivileged_icmp", "default_sysctls", list)
	}
	// containerd's default is false.
	if from := cmp.Or(t.selinuxKey, "enable_selinux, not given"); t.selinux {
		t.note(from, Needless, "as in Berth without a key, where the host has SELinux on")
	} else {
		t.set(from, "selinux", config.SELinuxOff)
	}
	t.set("the name that the kubelet is told", "runtime_name", config.NameContainerd)
	switch {
	case t.tls && t.cert != "" && t.key != "":
		t.set("tls_cert_file", "stream.tls_cert", t.cert)
		t.set("tls_key_file", "stream.tls_key", t.key)
	case t.tls:
		t.left("enable_tls_streaming", "stream.tls_cert and stream.tls_key have to be given: Berth makes no certificate")
	}
	// containerd 2 reads these directories where there is no config_path and no mirror, also beside credentials. It does
	// not read the table tls any more.
	if t.registry.path == "" && len(t.registry.mirrors)+len(t.registry.tls) == 0 {
		there := slices.DeleteFunc(slices.Clone(certsDirs), func(dir string) bool {
			info, err := os.Stat(dir)
			return err != nil || !info.IsDir()
		})
		t.registry.path, t.registry.byDefault = strings.Join(there, ":"), true
	}
	return t.registry.write(t.Plan)
}
